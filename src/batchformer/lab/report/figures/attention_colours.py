"""Ratios to uniform attention as colours: powers of 2, as far to both sides, extremes cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_REACH = 0.1
"""Of the colours to each side of uniform attention, as a power of 2: no noise in full colour."""

WITHIN = 0.98
"""Of all attention, that lies in cells within the colours."""


def reach_of(ratio: NDArray[Any], pairs: NDArray[Any]) -> float:
    """How far the colours go to each side, in powers of 2.

    Cells count by the attention in them: those that hold ``WITHIN`` of it lie within the colours. A
    class that next to no sample attends to would else wash out all others.

    Args:
        ratio: (..., P, P) to uniform attention; NaN where no pair was seen.
        pairs: (P, P) how many were.
    """
    given = np.where(np.isfinite(ratio), ratio * pairs, 0.0)
    used = given > 0
    if not used.any():
        return 1.0
    far, weight = np.abs(np.log2(ratio[used])), given[used]
    order = np.argsort(far)
    total = np.cumsum(weight[order])
    last = int(np.searchsorted(total, WITHIN * total[-1]))
    return max(float(far[order][last]), LEAST_REACH)


def in_colours(ratio: NDArray[Any], reach: float) -> NDArray[Any]:
    """Powers of 2; no attention at all has the last colour, a pair that was not seen has none."""
    with np.errstate(divide="ignore"):
        powers: NDArray[Any] = np.clip(np.log2(ratio), -reach, reach)
    return powers


def beyond(ratio: NDArray[Any], reach: float) -> tuple[bool, bool]:
    """Whether a cell lies below the colours, and whether one lies above them.

    >>> beyond(np.array([0.0, 0.5, 2.0]), reach=1.0)
    (True, False)
    """
    powers = in_colours(ratio, np.inf)
    # The cell at the end itself is within, whatever rounding does.
    limit = reach * (1 + 1e-9)
    return bool((powers < -limit).any()), bool((powers > limit).any())
