"""Which evaluation of a training is its best."""

from __future__ import annotations

import math
from collections.abc import Mapping


def is_better(metrics: Mapping[str, float], best: Mapping[str, float], select_on: str) -> bool:
    """Whether an evaluation is the best so far; the first is, and of equal ones the earlier.

    A headline that could not be measured is NaN, and worse than any other.

    Args:
        metrics: scores by name, the headline first.
        best: those of the best before, or none.
        select_on: ``val`` decides by the score of validation, anything else by the headline.

    Raises:
        ValueError: it is to be chosen on validation, and that has no score, or NaN.

    >>> is_better({"all": 60.0}, {"all": 50.0}, "last")
    True
    """
    decisive = _decisive(metrics, select_on)
    new, old = metrics[decisive], best.get(decisive, math.nan)
    return not best or new > old or (math.isnan(old) and not math.isnan(new))


def _decisive(metrics: Mapping[str, float], select_on: str) -> str:
    """The score by which the best evaluation is told: the headline, or that of validation."""
    if select_on != "val":
        return next(iter(metrics))
    if "val" not in metrics:
        raise ValueError(
            "train.select-on is val, but this task has no validation data; it measures "
            f"{', '.join(metrics)}. Set train.select-on last."
        )
    if math.isnan(metrics["val"]):
        raise ValueError(
            "train.select-on is val, but the score of validation is not a number, so that no "
            "evaluation is better than another. Set train.select-on last."
        )
    return "val"
