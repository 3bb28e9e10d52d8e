"""How far the loss of a class's samples moves the features of others, by the class's frequency.

The paper's claim is that rarer classes have larger gradients on other samples.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.lab.report.figures.canvas import INK, TEXT, new_figure, title
from batchformer.lab.report.figures.influence_numbers import (
    Influence,
    Measure,
    On,
    cumulative_mean,
    gather,
    running_mean,
)
from batchformer.lab.report.figures.influence_verdict import (
    control,
    power_of_ten,
    size,
    span,
    verdict,
)
from batchformer.lab.report.figures.panels import count_ticks
from batchformer.lab.report.figures.rank_correlation import Correlation, mean_of_known
from batchformer.lab.report.figures.shown import Numbers, Shown, Words
from batchformer.lab.report.results.configuration import Group
from batchformer.lab.report.results.names import arm_colours
from batchformer.lab.report.results.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RATIO = 30
"""Of the largest to the smallest value on a linear scale."""

MOST_TICKS = 7
"""Classes whose training images all stand along the axis."""

MOST_POINTS = 200
"""More classes than this are averaged over neighbours in frequency, for the dots alone."""


def figure(data: Influence) -> Figure:
    """Every arm has a panel of its own, since scales differ, and one more if cumulative."""
    kinds = ("each", "cumulative") if data.cumulative else ("each",)
    panels = [(arm, kind) for arm in data.by_arm for kind in kinds]
    drawn, every = new_figure([1.7] * len(panels))
    colours = arm_colours(data.by_arm)
    for axes, (arm, kind) in zip(every, panels, strict=True):
        values = data.by_arm[arm].values
        wide = _spans_orders(values)
        power = 0 if wide else _power(values)
        scale = 10.0**-power
        unit = "" if power == 0 else f", × {power_of_ten(10.0**power)}"
        unit = ", log scale" if wide else unit
        if kind == "each":
            title(axes, f"{arm}: gradient on other samples{unit}")
            _dots(axes, values * scale, colours[arm])
            places = np.arange(len(values)) + 1
            if data.window > 1:
                axes.plot(places, running_mean(values * scale, data.window), color=colours[arm])
        else:
            title(axes, f"{arm}: cumulative mean{unit}")
            axes.plot(
                np.arange(len(values)) + 1, cumulative_mean(values * scale), color=colours[arm]
            )
        if wide:
            axes.set_yscale("log")
            # Not as mathematics, whose exponents are too small to be read on a phone.
            axes.yaxis.set_major_formatter(lambda value, _: power_of_ten(value))
            axes.yaxis.set_minor_formatter(lambda value, _: "")
            axes.tick_params(which="minor", length=0)
        else:
            axes.set_ylim(bottom=0)
    most = MOST_TICKS if len(data.counts) <= MOST_TICKS else 5
    ticks, labels = count_ticks(data.counts.tolist(), most)
    every[-1].set_xticks([tick + 1 for tick in ticks], labels)
    every[-1].set_xlabel("Training images of the class", fontsize=TEXT, color=INK)
    return drawn


def words(data: Influence) -> Words:
    """What is plotted, and whether the paper's claim holds, arm by arm."""
    measured = "mean absolute value" if data.measure == "abs" else "length"
    over = ", ".join(f"{arm} {found.seeds}" for arm, found in data.by_arm.items())
    what = "the pooled features" if data.on == "features" else "the input images"
    note = (
        f"How far the loss of a sample moves {what} of the others in its batch: {measured} of the "
        f"gradient on {data.images}, mean over the samples of a class and over seeds ({over}). "
        f"{len(data.counts):,} classes from the most to the least training images."
    )
    together = _together(len(data.counts))
    if together > 1:
        note += f" A dot is the mean of up to {together} classes."
    if data.window > 1:
        note += f" The line is a running mean over {data.window} classes."
    if data.cumulative:
        note += (
            " The cumulative mean is over all classes at least as frequent, as the code of the "
            "paper draws it."
        )
    said = " ".join(
        " ".join([verdict(arm, found, data.counts), *size(found, data.counts), *control(found)])
        for arm, found in data.by_arm.items()
    )
    return Words(f"{note} {said}", f"Dot plot. {said}")


def numbers(data: Influence) -> list[Numbers]:
    """The correlations."""
    whole = {arm: found.correlation for arm, found in data.by_arm.items()}
    before = {arm: found.untrained for arm, found in data.by_arm.items() if found.untrained}
    known = {arm: found.controlled for arm, found in data.by_arm.items() if found.controlled}
    without = {arm for arm, found in data.by_arm.items() if not found.learnt}
    tables = [
        _table("Training count and gradient on others", whole, HOLDS, without),
        _table("The same before training, a control", before, UNTRAINED),
        _table(
            "The same as in the first table, accuracy of classes held fixed",
            {arm: found.partial for arm, found in known.items() if found.partial.by_seed},
            HOLDS,
            without,
        ),
        _table(
            "Accuracy of classes and gradient on others",
            {arm: found.of_accuracy for arm, found in known.items()},
            {True: "the harder, the larger", False: "the harder, the smaller"},
            without,
        ),
    ]
    return [table for table in tables if table.rows]


HOLDS = {True: "holds", False: "opposite"}
UNTRAINED = {True: "rarer, larger", False: "rarer, smaller"}


def _table(
    caption: str,
    by_arm: dict[str, Correlation],
    verdicts: dict[bool, str],
    without: Collection[str] = (),
) -> Numbers:
    """One row for each arm; those in ``without`` have learnt nothing and get no verdict."""
    rows = [
        (
            arm,
            str(len(found.by_seed)),
            "" if found.rho is None else number(found.rho),
            span(found.over_seeds),
            span(found.over_classes),
            _verdict(found.holds, verdicts) if arm not in without else "nothing learnt",
        )
        for arm, found in by_arm.items()
    ]
    columns = ("arm", "n", "rank corr.", "over seeds", "over classes", "verdict")
    return Numbers(caption, columns, rows)


def _verdict(holds: bool | None, verdicts: dict[bool, str]) -> str:
    return "not settled" if holds is None else verdicts[holds]


def classes_table(data: Influence) -> Numbers:
    """Count and gradient by class, from the most frequent."""
    rows = [
        (f"{count:,.0f}", *(f"{found.values[i]:.3e}" for found in data.by_arm.values()))
        for i, count in enumerate(data.counts)
    ]
    return Numbers("Gradient on others, by class", ("images", *data.by_arm), rows)


def shown(
    group: Group, measure: Measure = "abs", on: On = "features", cumulative: bool = False
) -> Shown | None:
    """The figure with its words and numbers."""
    data = gather(group, measure, on, cumulative)
    if data is None:
        return None
    tables = [*numbers(data), classes_table(data)]
    return Shown("Influence by gradient", words(data), lambda: figure(data), (), tables)


def _dots(axes: Axes, values: NDArray[Any], colour: str) -> None:
    together = _together(len(values))
    parts = [slice(i, i + together) for i in range(0, len(values), together)]
    places = np.arange(len(values)) + 1.0
    axes.plot(
        [places[part].mean() for part in parts],
        [mean_of_known(values[part][:, None])[0] for part in parts],
        linestyle="",
        marker="o",
        markersize=4 if len(values) <= 40 else 2,
        color=colour,
        alpha=0.7,
    )


def _together(classes: int) -> int:
    return -(-classes // MOST_POINTS)


def _spans_orders(values: NDArray[Any]) -> bool:
    """Whether the small ones would all lie on the axis of a linear scale."""
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() > 0 and known.max() > MOST_RATIO * known.min())


def _power(values: NDArray[Any]) -> int:
    """Of ten, to write the largest value with; 0 where that is legible as it is."""
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    power = int(np.floor(np.log10(largest))) if largest > 0 else 0
    return 0 if -2 <= power <= 2 else power
