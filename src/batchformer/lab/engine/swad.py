"""SWAD (Cha et al., 2021): the mean of the weights over all updates in a valley of the loss.

An evaluation ends a segment of the training. The average begins where the validation loss stops
falling and ends where it has risen for good.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.engine.method import Method
from batchformer.lab.models.norms import recalibrate_norms
from batchformer.torch_private import foreach_add_, foreach_lerp

#: Training batches over which the statistics of batch normalisation are computed again.
STATISTICS_BATCHES = 100
NO_SEGMENTS = range(0)
#: Settings of :class:`LossValley`: converge, tolerance and ratio.
SwadSettings = tuple[int, int, float]


class Swad(nn.Module):
    """The mean of a method's weights in a valley of the validation loss.

    The method trains as it would alone. Its weights are summed after every update, and the
    validation loss decides which segments join the mean, which is scored at the end of training.
    """

    def __init__(self, method: Method, settings: SwadSettings) -> None:
        super().__init__()
        self.segment = WeightSums(weights_of(method))
        self.valley = LossValley(*settings)
        self.waiting: dict[int, MeanWeights] = {}
        self.mean: MeanWeights | None = None
        self.done = 0  # updates before this segment

    def add(self, method: Method) -> None:
        """Add the weights after one more update; on a GPU this is captured with the update."""
        self.segment.add(weights_of(method))

    def tell(self, metrics: Mapping[str, float]) -> None:
        """End a segment with the scores of an evaluation, ``val_loss`` among them."""
        segment = None if self.valley.dead else self.segment.mean(self.done)
        self.done += int(self.segment.updates)
        self.segment.clear()
        if segment is None:  # the valley has ended, or there was no update since
            return
        self.waiting[self.valley.told] = segment
        for number in self.valley.tell(metrics["val_loss"]):
            self.mean = joined(self.mean, self.waiting[number])
        self.waiting = {number: self.waiting[number] for number in self.valley.pending}

    def averaged(self, method: Method, images: Iterable[Tensor]) -> Method:
        """A copy of the method with the mean of its weights, in eval.

        Args:
            images: batches of training images, to recalibrate batch normalisation.
        """
        averaged = copy.deepcopy(method)
        mean = self.final_mean()
        if mean is not None:
            with torch.no_grad():
                for own, value in zip(weights_of(averaged), mean.weights, strict=True):
                    own.copy_(value)
            recalibrate_batch_norm(averaged, images)
        return averaged.eval()

    def final_mean(self) -> MeanWeights | None:
        """The mean if training ended here; None before the first update.

        Without any evaluation it is the mean over all updates so far.
        """
        mean = self.mean
        for number in self.valley.finish():
            mean = joined(mean, self.waiting[number])
        return self.segment.mean(self.done) if mean is None else mean

    def finding(self) -> tuple[dict[str, float], str]:
        """Where the valley was: values for the run's records, and the same in words.

        Evaluations are numbered from 1; those without an update before them do not count. Values
        and words are empty before the first update.
        """
        mean = self.final_mean()
        if mean is None:
            return {}, ""
        threshold = self.valley.threshold
        first = mean.last - mean.updates + 1
        values: dict[str, float] = {
            "updates": mean.updates,
            "converged": threshold is not None,
            "first_update": first,
            "last_update": mean.last,
        }
        words = f"swad averages updates {first:,} to {mean.last:,}"
        if evaluations := self.valley.extent():
            start, end = evaluations[0] + 1, evaluations[-1] + 1
            values |= {"first_evaluation": start, "last_evaluation": end}
            words += f" (evaluation {end})" if start == end else f" (evaluations {start} to {end})"
        if threshold is None:
            return values, (
                f"{words}, the last segment alone: the validation loss never converged "
                f"(hyper.swad-converge {self.valley.converge} in {self.valley.told} evaluations)."
            )
        values["threshold"] = threshold
        return values, f"{words}; the threshold of the validation loss is {threshold:.4g}."

    def get_extra_state(self) -> dict[str, Any]:
        """State whose size changes, which buffers cannot hold."""
        return {
            "valley": dict(vars(self.valley)),
            "waiting": {number: dict(vars(mean)) for number, mean in self.waiting.items()},
            "mean": None if self.mean is None else dict(vars(self.mean)),
            "done": self.done,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.valley = LossValley(**state["valley"])
        self.waiting = {number: MeanWeights(**mean) for number, mean in state["waiting"].items()}
        self.mean = None if state["mean"] is None else MeanWeights(**state["mean"])
        self.done = state["done"]


@dataclass
class LossValley:
    """Takes one validation loss per segment and decides which segments join the average, and when.

    The valley begins at a segment whose loss is the smallest of `converge` losses, itself and those
    after it. The threshold is then `1 + ratio` times their mean. Earlier segments join too, back to
    the first loss above the threshold, within the window of the last `tolerance` losses. From then
    on, the oldest segment of that window joins at each evaluation. When all losses of the window
    are above the threshold, the valley is dead, and no further segment joins.

    Each segment counts once. In the authors' code the first addition replaces the segment that the
    average began with, so mostly the earliest one is lost; and the segment of the smallest loss is
    added again at each evaluation at which it is the oldest of the window.

    Args:
        converge: number of losses of which the oldest must be the smallest.
        tolerance: number of losses that must all be above the threshold to end the valley.
        ratio: how far the threshold is above the mean loss at the beginning of the valley.

    >>> valley = LossValley(converge=2, tolerance=2, ratio=0.5)
    >>> [list(valley.tell(loss)) for loss in (3.0, 1.0, 1.2, 1.4, 2.0, 2.1)]
    [[], [], [1], [2], [3], []]
    >>> valley.threshold, valley.dead
    (1.6500000000000001, True)
    >>> valley.extent()
    range(1, 4)
    """

    converge: int
    tolerance: int
    ratio: float
    told: int = 0
    losses: tuple[float, ...] = ()
    threshold: float | None = None
    first: int | None = None
    newest: int = -1
    dead: bool = False

    def tell(self, loss: float) -> range:
        """Add the loss of the next segment.

        Args:
            loss: NaN counts as infinite.

        Returns:
            The segments that join the average now, by number from 0.
        """
        losses = (*self.losses, math.inf if math.isnan(loss) else loss)
        self.losses = losses[-max(self.converge, self.tolerance) :]
        self.told += 1
        if self.dead:
            return NO_SEGMENTS
        if self.threshold is None:
            return self._begin()
        oldest = self._oldest(self.tolerance)
        if oldest <= self.newest:
            return NO_SEGMENTS
        if min(self.losses[-self.tolerance :]) > self.threshold:
            self.dead = True
            return NO_SEGMENTS
        self.newest = oldest
        return range(oldest, oldest + 1)

    def finish(self) -> range:
        """The segments that also join if training ends here; changes nothing.

        The rest of the window joins, up to its last loss that is not above the threshold. If the
        loss never converged, only the last segment joins.
        """
        if self.threshold is None:
            return range(max(self.told - 1, 0), self.told)
        low = [number for number in self.pending if self._loss(number) <= self.threshold]
        return range(self.newest + 1, low[-1] + 1) if low else NO_SEGMENTS

    def extent(self) -> range:
        """All segments of the average if training ended here; changes nothing."""
        rest = self.finish()
        if self.first is None:
            return rest
        return range(self.first, rest.stop or self.newest + 1)

    @property
    def pending(self) -> range:
        """The segments that have not joined and still may; earlier ones never will."""
        if self.dead:
            return NO_SEGMENTS
        if self.threshold is not None:
            return range(self.newest + 1, self.told)
        reach = max(self.converge, self.tolerance, 2) - 1
        return range(max(self.told - reach, 0), self.told)

    def _begin(self) -> range:
        recent = self.losses[-self.converge :]
        mean = sum(recent) / self.converge
        if len(recent) < self.converge or recent[0] > min(recent) or math.isinf(mean):
            return NO_SEGMENTS
        self.threshold = (1 + self.ratio) * mean
        first = converged = self._oldest(self.converge)
        reach = self._oldest(self.tolerance)
        while first > reach and self._loss(first - 1) <= self.threshold:
            first -= 1
        # With a tolerance shorter than `converge`, later segments are in the valley already.
        self.first, self.newest = first, max(converged, reach)
        return range(first, self.newest + 1)

    def _oldest(self, window: int) -> int:
        return max(self.told - window, 0)

    def _loss(self, segment: int) -> float:
        return self.losses[segment - self.told]


@dataclass(frozen=True)
class MeanWeights:
    """The mean of a network's weights over consecutive updates, in main memory.

    The weights of a ResNet-50 take 0.1 GB, and up to `tolerance` segments wait at a time. They are
    needed only at evaluations, so they do not take the device's memory from training.
    """

    weights: list[Tensor]
    updates: int
    last: int  # the number of the last update, from 1


class WeightSums(nn.Module):
    """Sums of weights over updates and the number of updates, in buffers.

    An update captured in a CUDA graph adds to the same buffers when it is replayed.
    """

    updates: Tensor

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        for number, weight in enumerate(weights):
            dtype = torch.promote_types(weight.dtype, torch.float32)
            zeros = torch.zeros_like(weight, dtype=dtype, requires_grad=False)
            self.register_buffer(str(number), zeros)
        # On the weights' device, because a graph does not replay counting on the host.
        self.register_buffer("updates", weights[0].new_zeros((), dtype=torch.int64))

    @property
    def sums(self) -> list[Tensor]:
        return [value for name, value in self.named_buffers() if name != "updates"]

    @torch.no_grad()
    def add(self, weights: list[Tensor]) -> None:
        """Add the weights after one more update."""
        foreach_add_(self.sums, weights)
        self.updates.add_(1)

    def mean(self, before: int = 0) -> MeanWeights | None:
        """The mean since the last :meth:`clear`; None if nothing was added.

        Args:
            before: number of updates before this segment.
        """
        updates = int(self.updates)
        if not updates:
            return None
        means = [(value / updates).cpu() for value in self.sums]
        return MeanWeights(means, updates, before + updates)

    def clear(self) -> None:
        """Start over."""
        for value in self.buffers():
            value.zero_()


def weights_of(network: nn.Module) -> list[Tensor]:
    """The weights that are averaged."""
    return [p for p in network.parameters() if p.is_floating_point()]


def joined(mean: MeanWeights | None, later: MeanWeights) -> MeanWeights:
    """The mean over the updates of both."""
    if mean is None:
        return later
    updates = mean.updates + later.updates
    weights = foreach_lerp(mean.weights, later.weights, later.updates / updates)
    return MeanWeights(list(weights), updates, later.last)


@torch.no_grad()
def recalibrate_batch_norm(method: Method, images: Iterable[Tensor]) -> None:
    """Compute the statistics of batch normalisation again: the stored ones belong to other weights.

    They become means over these batches, passed as in predictions, without dropout and BatchFormer.
    Layers that stay in eval mode when the method trains keep their statistics, and so do layers
    that predictions do not use. The method is left in eval mode.
    """
    method.train()
    with recalibrate_norms(method) as norms:
        method.eval()
        if not norms:
            return
        for norm in norms:
            norm.train()
        for x in images:
            method.predict(x)
    method.eval()
    method.further_scores()  # drops what these predictions counted
