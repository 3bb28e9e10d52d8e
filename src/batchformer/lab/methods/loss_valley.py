"""Where the validation loss has its valley, and which parts of a training lie in it: SWAD's rule.

Training is cut into segments, each ended by an evaluation. The average of the weights begins where
the loss stops falling and ends where it has risen for good. Nothing here knows of weights.
"""

from __future__ import annotations

import math
from typing import Any

NONE = range(0)


class LossValley:
    """Told one validation loss per segment, says which segments join the average, and when.

    The valley begins with the segment whose loss is the least of `converge` in a row, it being the
    first of them; the threshold is then `1 + ratio` times their mean. Earlier segments join with it
    as far back as the window of `tolerance` losses reaches and as none lies above the threshold.
    From then on the oldest segment of that window joins at each evaluation, until all losses of
    the window lie above the threshold: the valley is dead, and nothing joins any more.

    Each segment counts once. In the authors' released code the first addition replaces the segment
    that the average began with, so mostly the earliest one is lost; and the segment of the least
    loss is added again when it is the oldest of the window, at each evaluation at which it is.

    Args:
        converge: losses of which the oldest is to be the least.
        tolerance: losses that must all lie above the threshold to end the valley.
        ratio: how far the threshold lies above the mean loss at the valley's beginning.

    >>> valley = LossValley(converge=2, tolerance=2, ratio=0.5)
    >>> [list(valley.tell(loss)) for loss in (3.0, 1.0, 1.2, 1.4, 2.0, 2.1)]
    [[], [], [1], [2], [3], []]
    >>> valley.threshold, valley.dead
    (1.6500000000000001, True)
    >>> valley.extent()
    range(1, 4)
    """

    def __init__(self, converge: int, tolerance: int, ratio: float) -> None:
        if converge < 1 or tolerance < 1 or ratio < 0:
            raise ValueError(
                f"A loss valley needs windows of at least 1 and a ratio of at least 0, not "
                f"converge {converge}, tolerance {tolerance}, ratio {ratio}."
            )
        self.converge, self.tolerance, self.ratio = converge, tolerance, ratio
        self.told = 0
        self.losses: list[float] = []
        self.threshold: float | None = None
        self.first: int | None = None
        self.newest = -1
        self.dead = False

    def tell(self, loss: float) -> range:
        """Take in the loss of the next segment.

        Args:
            loss: what is not a number counts as infinite.

        Returns:
            The segments that join the average now, by number from 0.
        """
        self.losses.append(math.inf if math.isnan(loss) else loss)
        self.losses = self.losses[-max(self.converge, self.tolerance) :]
        self.told += 1
        if self.dead:
            return NONE
        if self.threshold is None:
            return self._begin()
        oldest = self._oldest(self.tolerance)
        if oldest <= self.newest:
            return NONE
        if min(self.losses[-self.tolerance :]) > self.threshold:
            self.dead = True
            return NONE
        self.newest = oldest
        return range(oldest, oldest + 1)

    def finish(self) -> range:
        """The segments that join besides at the end of training; asking changes nothing.

        What is left of the window joins up to its last loss that is not above the threshold. If
        the loss never converged, the last segment is all there is.
        """
        if self.threshold is None:
            return range(max(self.told - 1, 0), self.told)
        low = [number for number in self.pending if self._loss(number) <= self.threshold]
        return range(self.newest + 1, low[-1] + 1) if low else NONE

    def extent(self) -> range | None:
        """All segments of the average, if training ended here; asking changes nothing.

        None where the valley began before its beginning was kept, in an older checkpoint.
        """
        rest = self.finish()
        if self.threshold is None:
            return rest
        return None if self.first is None else range(self.first, rest.stop or self.newest + 1)

    @property
    def pending(self) -> range:
        """The segments that have not joined and may still; those before them never will."""
        if self.dead:
            return NONE
        if self.threshold is not None:
            return range(self.newest + 1, self.told)
        reach = max(self.converge, self.tolerance, 2) - 1
        return range(max(self.told - reach, 0), self.told)

    def _begin(self) -> range:
        recent = self.losses[-self.converge :]
        mean = sum(recent) / self.converge
        if len(recent) < self.converge or recent[0] > min(recent) or math.isinf(mean):
            return NONE
        self.threshold = (1 + self.ratio) * mean
        first = converged = self._oldest(self.converge)
        reach = self._oldest(self.tolerance)
        while first > reach and self._loss(first - 1) <= self.threshold:
            first -= 1
        # A tolerance shorter than `converge` has passed over segments that are in the valley.
        self.first, self.newest = first, max(converged, reach)
        return range(first, self.newest + 1)

    def _oldest(self, window: int) -> int:
        return max(self.told - window, 0)

    def _loss(self, segment: int) -> float:
        return self.losses[segment - self.told]

    def state(self) -> dict[str, Any]:
        """Plain values, to be restored by :meth:`restore`."""
        return {
            "told": self.told,
            "losses": list(self.losses),
            "threshold": self.threshold,
            "first": self.first,
            "newest": self.newest,
            "dead": self.dead,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self.told, self.losses = state["told"], list(state["losses"])
        self.threshold, self.newest = state["threshold"], state["newest"]
        self.first, self.dead = state.get("first"), state["dead"]
