"""The gradient of a class's losses on the features of other samples, by the class's frequency.

The paper's claim is that rarer classes have larger gradients on other samples. Rare classes are
mostly hard ones, so the claim is also tested with the accuracy of classes held fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import INK, TEXT, count_ticks, log_scale, new_figure, title
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.learning import Learning, learning
from batchformer.insight.figures.networks import (
    NetworkGroup,
    arrays_by_arm,
    first_run,
    image_count,
    mean_of_known,
    safe_divide,
)
from batchformer.insight.figures.rank_correlation import Correlation, correlation
from batchformer.insight.figures.text import (
    in_full,
    in_powers,
    interval,
    number,
    over_seeds,
    power_of_ten,
    seeds,
)
from batchformer.insight.record import InsightArrays
from batchformer.plug.findings import NEXT_TO_NOTHING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Measure = Literal["abs", "l2"]
On = Literal["features", "images"]

MOST_RATIO = 30  # the largest over the smallest value; beyond it the scale is logarithmic
MOST_TICKS = 7  # up to this many classes, each has its training images on the axis
MOST_SHAPES = 200  # more dots are drawn as pixels: shapes would be most of a page's bytes
MOST_OF_IT = 0.5
"""If less than this part of a correlation is left at fixed accuracy, most of it is gone."""
BEFORE = "The same before training, a control"
HELD = {True: "holds", None: "is not settled", False: "does not hold"}
EXACT = 1 - 1e-9  # rank correlations above this mean the same order


@dataclass(frozen=True)
class Controlled:
    """Correlations of the gradient over the seeds that kept the accuracy of classes."""

    of_accuracy: Correlation  # with the accuracy
    partial: Correlation  # with the count, accuracy held fixed


@dataclass(frozen=True)
class InfluenceOfArm:
    """Gradients of one arm."""

    values: NDArray[Any]  # mean over seeds by class, (K,), NaN for a class not measured
    correlation: Correlation  # training count with gradient
    seeds: int
    controlled: Controlled | None = None  # None where no run kept its accuracy by class
    change: float | None = None  # see `change_of_a_loss`; None where that is not known
    # Training count with gradient before training; None where it was not measured
    untrained: Correlation | None = None
    learning: Learning | None = None  # what networks have learnt; None where that is not known
    colour: str = INK

    @property
    def learnt(self) -> bool:
        """Whether the networks have learnt anything, as far as is known."""
        return self.learning is None or self.learning.learnt

    def thirds(self, counts: NDArray[Any]) -> float | None:
        """Mean over the rarest third of the classes, divided by that over the most frequent third.

        ``counts`` are (K,) training images, descending. None where a class of one third has as
        many as one of the other.
        """
        third = len(self.values) // 3
        if not third or counts[third - 1] <= counts[-third]:
            return None
        known = (part[np.isfinite(part)] for part in (self.values[:third], self.values[-third:]))
        frequent, rare = (part.mean() if part.size else 0.0 for part in known)
        return float(rare / frequent) if frequent > 0 else None


@dataclass(frozen=True)
class InfluenceByClass:
    """K classes from the most to the fewest training images."""

    counts: NDArray[Any]  # training images, (K,)
    by_arm: dict[str, InfluenceOfArm]
    window: int  # classes that a point of the running mean spans; 1 for none
    measure: Measure  # mean absolute value, or length, of a gradient
    on: On
    cumulative: bool  # whether the mean over all more frequent classes is drawn too
    images: str = "test samples"  # test images that were measured, in words


def make(data: InfluenceByClass) -> CaptionedFigure:
    title = "Influence by gradient"
    return CaptionedFigure(title, caption(data), lambda: draw(data), (), tables(data))


def gather(
    group: NetworkGroup, measure: Measure = "abs", on: On = "features", cumulative: bool = False
) -> InfluenceByClass | None:
    name = f"gradient_{measure}" if on == "features" else f"gradient_images_{measure}"
    before = name.replace("gradient", "gradient_untrained")
    found = arrays_by_arm(group, "train_counts", "gradient_samples", name)
    if not found:
        return None
    first = first_run(found)
    counts = first["train_counts"].astype(np.float64)
    order = np.argsort(-counts, kind="stable")
    controls = arrays_by_arm(group, "train_counts", "gradient_samples", before)
    by_arm, colours = {}, group.colours_of(found)
    for arm, runs in found.items():
        by_seed = {seed: _measured(run, name)[order] for seed, run in runs.items()}
        untrained = [_measured(run, before)[order] for run in controls.get(arm, {}).values()]
        values = np.stack(list(by_seed.values()))
        right = accuracies(group, arm)
        accuracy = {seed: right[seed][order] for seed in right if seed in by_seed}
        by_arm[arm] = InfluenceOfArm(
            mean_of_known(values),
            correlation(counts[order], values),
            len(values),
            _controlled(counts[order], by_seed, accuracy),
            change_of_a_loss(group, arm) if on == "features" else None,
            correlation(counts[order], np.stack(untrained)) if untrained else None,
            learning([run.insight for run in group.of(arm) if run.seed in runs]),
            colours[arm],
        )
    seen = image_count(group, int(first["gradient_samples"].sum()))
    window = window_of(len(counts))
    return InfluenceByClass(counts[order], by_arm, window, measure, on, cumulative, seen.words)


def _measured(run: InsightArrays, name: str) -> NDArray[Any]:
    """Gradients by class, (K,), NaN for a class not measured."""
    return np.where(run["gradient_samples"] > 0, run[name], np.nan).astype(np.float64)


def feature_distance(points: NDArray[Any], share: NDArray[Any]) -> float:
    """Root mean square distance of two features, from the principal axes that were kept.

    Args:
        points: (S, A) centred features on A principal axes.
        share: (A,) of the variance that lies along them.

    >>> feature_distance(np.array([[3.0, 0.0], [-3.0, 0.0]]), np.array([0.5, 0.0]))
    6.0
    """
    along = float((points.astype(np.float64) ** 2).sum(1).mean())
    total = float(share.sum())
    return float(np.sqrt(2 * along / total)) if total > 0 else float("nan")


def change_of_a_loss(group: NetworkGroup, arm: str) -> float | None:
    """How far one other sample can change a loss, in nats; None where no run kept enough.

    It is the first-order change where the other sample's feature moves as far as two samples lie
    apart, in the direction that changes the loss most: the mean over pairs of samples, classes and
    seeds. Single pairs can change it far more.
    """
    names = ("gradient_samples", "gradient_l2", "projection", "projection_share")
    changes = []
    for run in arrays_by_arm(group, *names).get(arm, {}).values():
        lengths = run["gradient_l2"][run["gradient_samples"] > 0].astype(np.float64)
        if lengths.size:
            distance = feature_distance(run["projection"], run["projection_share"])
            changes.append(lengths.mean() * distance)
    known = [change for change in changes if np.isfinite(change)]
    return float(np.mean(known)) if known else None


def accuracies(group: NetworkGroup, arm: str) -> dict[int, NDArray[Any]]:
    """Accuracy by class in percent, (K,), for each seed whose network was looked at."""
    found = {}
    for run in group.of(arm):
        right, counts = (run.insight_figures.get(name) for name in ("per_class", "train_counts"))
        looked = run.insight.get("train_counts")
        if right is None or counts is None or looked is None or right.shape != counts.shape:
            continue
        # If counts differ, they belong to other classes or to another training.
        if np.array_equal(counts, looked):
            found[run.seed] = right.astype(np.float64)
    return found


def _controlled(
    counts: NDArray[Any], gradients: dict[int, NDArray[Any]], accuracy: dict[int, NDArray[Any]]
) -> Controlled | None:
    if not accuracy:
        return None
    right = np.stack(list(accuracy.values()))
    values = np.stack([gradients[seed] for seed in accuracy])
    return Controlled(correlation(right, values), correlation(counts, values, right))


def window_of(classes: int) -> int:
    """An odd number near a tenth of the classes, at least 3; 1 where there are few.

    >>> window_of(8), window_of(10), window_of(100), window_of(1000)
    (1, 3, 11, 101)
    """
    return 1 if classes < 10 else max(3, classes // 10 // 2 * 2 + 1)


def running_mean(values: NDArray[Any], window: int) -> NDArray[Any]:
    """Running mean of (K,) values over ``window`` of them, fewer at the ends; NaN is ignored."""
    known, half = np.isfinite(values), window // 2
    sums, sizes = (
        np.concatenate([[0.0], np.cumsum(part)]) for part in (np.where(known, values, 0.0), known)
    )
    places = np.arange(len(values))
    low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return safe_divide(sums[high] - sums[low], sizes[high] - sizes[low])


def cumulative_mean(values: NDArray[Any]) -> NDArray[Any]:
    """For each of (K,) values the mean of all up to it, as in the released code; NaN is ignored."""
    known = np.isfinite(values)
    return safe_divide(np.cumsum(np.where(known, values, 0.0)), np.cumsum(known))


# The picture


def draw(data: InfluenceByClass) -> Figure:
    """Draw a panel for every arm, since scales differ, and one more if cumulative."""
    kinds = ("gradient on other samples", "cumulative mean")[: 1 + data.cumulative]
    panels = [(arm, kind) for arm in data.by_arm for kind in kinds]
    drawn, every = new_figure([1.7] * len(panels))
    for axes, (arm, kind) in zip(every, panels, strict=True):
        values, colour = data.by_arm[arm].values, data.by_arm[arm].colour
        wide = _spans_orders(values)
        power = 0 if wide else _power(values)
        unit = ", log scale" if wide else f", × {power_of_ten(10.0**power)}" if power else ""
        title(axes, f"{arm}: {kind}{unit}")
        scaled, places = values * 10.0**-power, np.arange(len(values)) + 1
        if kind == "cumulative mean":
            axes.plot(places, cumulative_mean(scaled), color=colour)
        else:
            _dots(axes, scaled, colour)
            if data.window > 1:
                axes.plot(places, running_mean(scaled, data.window), color=colour)
        if wide:
            log_scale(axes, power_of_ten)
        else:
            axes.set_ylim(bottom=0)
    most = MOST_TICKS if len(data.counts) <= MOST_TICKS else 5
    ticks, labels = count_ticks(data.counts.tolist(), most)
    every[-1].set_xticks([tick + 1 for tick in ticks], labels)
    every[-1].set_xlabel("Training samples of the class", fontsize=TEXT, color=INK)
    return drawn


def _dots(axes: Axes, values: NDArray[Any], colour: str) -> None:
    size = 4 if len(values) <= 40 else 2
    # The largest value may be as high as the panel, which would cut its dot. Unclipped, a line
    # without points is laid out as if in the figure's corner.
    style: Any = {"linestyle": "", "marker": "o", "clip_on": False, "in_layout": False}
    style["rasterized"] = len(values) > MOST_SHAPES
    places = np.arange(len(values)) + 1
    axes.plot(places, values, markersize=size, color=colour, alpha=0.7, **style)


def _spans_orders(values: NDArray[Any]) -> bool:
    """Whether small values would all lie on the axis of a linear scale."""
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() > 0 and known.max() > MOST_RATIO * known.min())


def _power(values: NDArray[Any]) -> int:
    """The power of ten of the largest value; 0 where it is legible without one."""
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    power = int(np.floor(np.log10(largest))) if largest > 0 else 0
    return 0 if -2 <= power <= 2 else power


# The caption: does the claim hold, how large are gradients, and is it rarity or difficulty?


def caption(data: InfluenceByClass) -> Caption:
    measured = "mean absolute value" if data.measure == "abs" else "length"
    counts = {arm: found.seeds for arm, found in data.by_arm.items()}
    over = f" and over {over_seeds(counts)}" if sum(counts.values()) > 1 else ""
    what = "the pooled features" if data.on == "features" else "the input images"
    note = (
        f"The gradient of a sample's loss on {what} of the others in its batch; a dot is a class. "
        f"{claim_words(data)}"
    )
    details = (
        f"The {measured} of the gradient on {data.images}, mean over the samples of a "
        f"class{over}. {len(data.counts):,} classes from the most to the fewest training samples."
    )
    if data.window > 1:
        details += f" The line is a running mean over {data.window} classes."
    if data.cumulative:
        details += (
            " The cumulative mean is over all classes at least as frequent, as the code of the "
            "paper draws it."
        )
    said = " ".join(
        sentence
        for arm, found in data.by_arm.items()
        for sentence in (
            verdict_words(arm, found, data.counts),
            *size_words(found, data.counts),
            *control_words(found),
        )
    )
    return Caption(note, f"Dot plot. {said}", f"{details} {said}")


def claim_words(data: InfluenceByClass) -> str:
    """Whether the paper's claim holds, in a sentence for all arms."""
    by_word: dict[str, list[str]] = {}
    for arm, found in data.by_arm.items():
        judged = found.learnt and found.correlation.rho is not None
        word = HELD[found.correlation.is_negative] if judged else "has no verdict"
        by_word.setdefault(word, []).append(arm)
    said = "; ".join(f"{word} for {' and '.join(arms)}" for word, arms in by_word.items())
    if len(data.by_arm) == 1:
        (said,) = by_word
    return f"The paper's claim that a rarer class has the larger gradient {said}."


def verdict_words(arm: str, found: InfluenceOfArm, counts: NDArray[Any]) -> str:
    """Whether the claim holds by counts (K,) and gradients alone, and for an untrained network."""
    whole = found.correlation
    if whole.rho is None:
        equal = "gradients" if np.ptp(counts) else "training counts"
        return f"{arm}: no order to speak of, since all {equal} are equal."
    ranked = f"rank correlation of training count with gradient {with_intervals(whole)}"
    claim = "the paper's claim that a rarer class has the larger gradient"
    if found.learning is not None and not found.learning.learnt:
        said = (
            f"no verdict on {claim}, since nothing was learnt that can be told from chance "
            f"({found.learning.words}; {ranked})."
        )
    else:
        held = HELD[whole.is_negative]
        opposite = ", the opposite does" if whole.is_negative is False else ""
        said = f"{claim} {held} here{opposite} ({ranked})."
    return f"{arm}: {said} {_before(found)}"


def _before(found: InfluenceOfArm) -> str:
    """What the same network shows before training, with random weights and the same loss."""
    if found.untrained is None:
        return "An untrained network was not measured beside it."
    if found.untrained.rho is None:
        return "Before training there is no such order."
    said = f"Before training it is {with_intervals(found.untrained)}"
    if found.learnt and found.correlation.is_negative and found.untrained.is_negative:
        said += ": rarer classes have the larger gradient without anything learnt, too"
    return f"{said}."


def size_words(found: InfluenceOfArm, counts: NDArray[Any]) -> list[str]:
    """How large gradients are, and how much larger for rare classes, which ranks do not say.

    Empty where all gradients are 0.
    """
    known = found.values[np.isfinite(found.values)]
    if not known.any():
        return []
    said = f"The gradients are {in_powers(float(known.mean()))} in the mean over classes"
    thirds = found.thirds(counts)
    if thirds is not None:
        times = f"{number(thirds, 1)} times as large"
        said += f", {times} in the rarest third of them as in the most frequent"
    if found.change is not None:
        small = ", next to nothing" if found.change < NEXT_TO_NOTHING else ""
        said += (
            f": if the feature of one other sample moved as far as two samples lie apart, a loss "
            f"would change by no more than about {in_full(found.change)}{small}, on average over "
            f"pairs of samples"
        )
    return [f"{said}."]


def control_words(found: InfluenceOfArm) -> list[str]:
    """What is left of the correlation among classes of equal accuracy; empty where unknown."""
    whole, known = found.correlation, found.controlled
    if known is None or whole.rho is None or known.of_accuracy.rho is None or not found.learnt:
        return []
    of_accuracy, partial = known.of_accuracy, known.partial
    beside = f"rank correlation of accuracy with gradient {number(known.of_accuracy.rho)}"
    if partial.rho is not None:
        held = f"With the accuracy of classes held fixed it is {with_intervals(partial)}"
        return [f"{held}: {_left(whole, partial, of_accuracy)} ({beside})."]
    if abs(known.of_accuracy.rho) < EXACT:
        return []
    return [
        f"Gradients and accuracies have the same order ({beside}): with the accuracy of classes "
        f"held fixed nothing is left to rank."
    ]


def _left(whole: Correlation, partial: Correlation, of_accuracy: Correlation) -> str:
    """What the partial correlation says, compared with the whole one."""
    hard = "among classes that are equally hard"
    if whole.is_negative is not True:
        return {
            True: f"{hard} the rarer has the larger gradient",
            False: f"{hard} the more frequent has the larger gradient",
            None: f"not settled {hard} either",
        }[partial.is_negative]
    if partial.is_negative is False:
        return f"{hard} the opposite holds"
    if abs(partial.rho or 0.0) < MOST_OF_IT * abs(whole.rho or 0.0):
        most = "most of it goes with accuracy"
        if of_accuracy.is_negative:
            most = "mostly it is harder classes that have larger gradients, and rare ones are hard"
        adds = "rarity adds to that"
        return f"{most}; {adds}" if partial.is_negative else f"{most}; whether {adds} is open"
    if partial.is_negative:
        return f"{hard} the rarer has the larger gradient too"
    return "whether it is rarity, or that rare classes are harder, is open"


def with_intervals(found: Correlation) -> str:
    """The mean over seeds with its intervals, where they are known."""
    spans = []
    if found.over_seeds is not None:
        spans.append(f"{span(found.over_seeds)} over {seeds(len(found.by_seed))}")
    if found.over_classes is not None:
        spans.append(f"{span(found.over_classes)} by a bootstrap over classes")
    rho = "unknown" if found.rho is None else number(found.rho)
    return f"{rho}, 95% interval {' and '.join(spans)}" if spans else rho


def span(found: Sequence[float] | None) -> str:
    """An interval in brackets; "" where there is none."""
    return "" if found is None else interval(found[0], found[1], sign=True)


def tables(data: InfluenceByClass) -> list[FigureTable]:
    """The known correlations arm by arm, and then the gradient of every class."""
    arms = data.by_arm
    controlled = {arm: found.controlled for arm, found in arms.items() if found.controlled}
    claim = "holds", "opposite"
    kinds: list[tuple[str, tuple[str, str], dict[str, Correlation]]] = [
        (
            "Training count and gradient on others",
            claim,
            {arm: found.correlation for arm, found in arms.items()},
        ),
        (
            BEFORE,
            ("rarer, larger", "rarer, smaller"),
            {arm: found.untrained for arm, found in arms.items() if found.untrained},
        ),
        (
            "The same as in the first table, accuracy of classes held fixed",
            claim,
            {arm: one.partial for arm, one in controlled.items() if one.partial.by_seed},
        ),
        (
            "Accuracy of classes and gradient on others",
            ("the harder, the larger", "the harder, the smaller"),
            {arm: one.of_accuracy for arm, one in controlled.items()},
        ),
    ]
    columns = ("arm", "n", "rank corr.", "over seeds", "over classes", "verdict")
    made = []
    for caption, (below, above), by_arm in kinds:
        rows = [
            (
                arm,
                str(len(found.by_seed)),
                "" if found.rho is None else number(found.rho),
                span(found.over_seeds),
                span(found.over_classes),
                "nothing learnt"
                if caption != BEFORE and not arms[arm].learnt
                else "no verdict"
                if found.rho is None
                else {True: below, False: above, None: "not settled"}[found.is_negative],
            )
            for arm, found in by_arm.items()
        ]
        made += [FigureTable(caption, columns, rows)] if rows else []
    by_class = [
        (f"{count:,.0f}", *("" if np.isnan(v) else f"{v:.3e}" for v in values))
        for count, *values in zip(
            data.counts, *(found.values for found in arms.values()), strict=True
        )
    ]
    return [*made, FigureTable("Gradient on others, by class", ("images", *arms), by_class)]
