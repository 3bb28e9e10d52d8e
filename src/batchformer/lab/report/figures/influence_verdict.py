"""Does "the rarer the class, the larger its gradient on others" hold? In words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.lab.report.figures.influence_numbers import OfArm
from batchformer.lab.report.figures.rank_correlation import Correlation
from batchformer.lab.report.results.words import interval, number, seeds
from batchformer.plug.alive import NEXT_TO_NOTHING as NEXT_TO_NOTHING

MOST_OF_IT = 0.5
"""Of a correlation: where less than this is left of it, most of it has gone."""

NO_BREAK = "\N{NO-BREAK SPACE}"

EXACT = 1 - 1e-9
"""Of a rank correlation, that of one and the same order."""


def verdict(arm: str, found: OfArm, counts: NDArray[Any]) -> str:
    """What counts and gradients alone say of it, and what an untrained network shows of it.

    Args:
        arm: its name.
        found: its gradients.
        counts: (K,) training images of the classes.
    """
    whole = found.correlation
    if whole.rho is None:
        equal = "gradients" if np.ptp(counts) else "training counts"
        return f"{arm}: no order to speak of, since all {equal} are equal."
    ranked = f"rank correlation of training count with gradient {with_intervals(whole)}"
    claim = "the paper's claim that a rarer class has the larger gradient"
    if found.learning is not None and not found.learning.learnt:
        said = (
            f"{arm}: no verdict on {claim}, since nothing was learnt that can be told from chance "
            f"({found.learning.words}; {ranked})."
        )
    elif whole.holds:
        said = f"{arm}: {claim} holds here ({ranked})."
    elif whole.holds is None:
        said = f"{arm}: {claim} is not settled here ({ranked})."
    else:
        said = f"{arm}: {claim} does not hold here, the opposite does ({ranked})."
    return " ".join([said, *_before(found)])


def _before(found: OfArm) -> list[str]:
    """What the same network shows before any training, with random weights and the same loss."""
    if found.untrained is None:
        return ["An untrained network was not measured beside it."]
    if found.untrained.rho is None:
        return ["Before training there is no such order."]
    said = f"Before training it is {with_intervals(found.untrained)}"
    if found.learnt and found.correlation.holds and found.untrained.holds:
        said += ": rarer classes have the larger gradient without anything learnt, too"
    return [f"{said}."]


def size(found: OfArm, counts: NDArray[Any]) -> list[str]:
    """How large these gradients are, and how much larger those of rare classes; an order has none.

    Nothing where there are no gradients at all.
    """
    known = found.values[np.isfinite(found.values)]
    if not known.any():
        return []
    said = f"The gradients are {in_powers(float(known.mean()))} in the mean over classes"
    thirds = found.thirds(counts)
    if thirds is not None:
        said += (
            f", {number(thirds, 1)} times as large in the rarest third of them as in the "
            f"most frequent"
        )
    if found.change is None:
        return [f"{said}."]
    small = ", next to nothing" if found.change < NEXT_TO_NOTHING else ""
    return [
        f"{said}: if the feature of one other sample moved as far as two samples lie apart, a loss "
        f"would change by no more than about {in_full(found.change)}{small}, on average over pairs "
        f"of samples."
    ]


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float) -> str:
    """The nearest one, as it is written where an exponent of mathematics would be too small.

    >>> power_of_ten(0.0011)
    '10⁻³'
    """
    return f"10{str(round(np.log10(value))).translate(_RAISED)}"


def in_powers(value: float) -> str:
    """A number with two digits and a power of ten, in one piece.

    >>> in_powers(3.54e-7).replace(NO_BREAK, " ")
    '3.5 × 10⁻⁷'
    """
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}{NO_BREAK}×{NO_BREAK}{power_of_ten(10.0 ** int(power))}"


def in_full(value: float) -> str:
    """One digit after the zeros, and no exponent."""
    rounded = float(f"{value:.1g}")
    return f"{rounded:.0f}" if rounded >= 1 else f"{rounded:.{-int(f'{rounded:e}'[-3:])}f}"


def control(found: OfArm) -> list[str]:
    """What is left of it among classes of the same accuracy; nothing where that is not known."""
    whole, known = found.correlation, found.controlled
    if known is None or whole.rho is None or not found.learnt:
        return []
    of_accuracy, partial = known.of_accuracy, known.partial
    if of_accuracy.rho is None:
        return []
    beside = f"rank correlation of accuracy with gradient {number(of_accuracy.rho)}"
    if partial.rho is None:
        if abs(of_accuracy.rho) < EXACT:
            return []
        return [
            f"Gradients have the very order of accuracies ({beside}): with the accuracy of classes "
            f"held fixed nothing is left to rank."
        ]
    held = f"With the accuracy of classes held fixed it is {with_intervals(partial)}"
    return [f"{held}: {_left(whole, partial, of_accuracy)} ({beside})."]


def _left(whole: Correlation, partial: Correlation, of_accuracy: Correlation) -> str:
    """What the partial correlation says, beside the whole one."""
    if whole.holds is not True:
        return {
            True: "among classes that are equally hard the rarer has the larger gradient",
            False: "among classes that are equally hard the more frequent has the larger gradient",
            None: "not settled among classes that are equally hard either",
        }[partial.holds]
    if partial.holds is False:
        return "among classes that are equally hard the opposite holds"
    if abs(partial.rho or 0.0) < MOST_OF_IT * abs(whole.rho or 0.0):
        most = "most of it goes with accuracy"
        if of_accuracy.holds:
            most = "mostly it is harder classes that have larger gradients, and rare ones are hard"
        rest = "rarity adds to that" if partial.holds else "whether rarity adds to that is open"
        return f"{most}; {rest}"
    if partial.holds:
        return "among classes that are equally hard the rarer has the larger gradient too"
    return "whether it is rarity, or that rare classes are harder, is open"


def with_intervals(found: Correlation) -> str:
    """The mean over seeds, with what is known of its error."""
    spans = []
    if found.over_seeds is not None:
        spans.append(f"{span(found.over_seeds)} over {seeds(len(found.by_seed))}")
    if found.over_classes is not None:
        spans.append(f"{span(found.over_classes)} by a bootstrap over classes")
    rho = "unknown" if found.rho is None else number(found.rho)
    return f"{rho}, 95% interval {' and '.join(spans)}" if spans else rho


def span(found: Sequence[float] | None) -> str:
    """An interval as it is written; nothing where there is none."""
    return "" if found is None else interval(found[0], found[1], sign=True)
