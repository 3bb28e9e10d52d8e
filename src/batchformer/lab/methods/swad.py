"""SWAD (Cha et al., 2021): the mean of the weights of every update in a valley of the loss."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.method import Batches, Finding, Method
from batchformer.lab.engine.optimizer_step import Batch, Mechanics
from batchformer.lab.methods.loss_valley import LossValley
from batchformer.lab.methods.mean_weights import MeanWeights, WeightSums, joined, weights_of
from batchformer.lab.methods.renewed_statistics import renew_statistics


class Swad(Method):
    """Another method, and beside it the mean of its weights.

    The method trains as it would alone. Weights are averaged after every update, segment by segment
    between evaluations; the validation loss tells which segments join. The mean is scored at the
    end of training under the name `swad`.

    Args:
        inner: the method that is trained.
        converge: see `LossValley`, for this and the next two.
        tolerance: evaluations that may lie above the threshold.
        ratio: how far the threshold lies above the loss.
    """

    def __init__(self, inner: Method, converge: int, tolerance: int, ratio: float) -> None:
        super().__init__()
        self.inner = inner
        self.stages, self.module_lr_factor = inner.stages, inner.module_lr_factor
        self.settings = (converge, tolerance, ratio)
        self.segment = WeightSums(weights_of(inner))
        self._begin()

    def _begin(self) -> None:
        self.valley = LossValley(*self.settings)
        self.waiting: dict[int, MeanWeights] = {}
        self.mean: MeanWeights | None = None
        self.done: int | None = 0  # updates before this segment
        self.segment.clear()

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return self.inner.step(batch)

    def predict(self, x: Tensor) -> Tensor:
        return self.inner.predict(x)

    def scored(self) -> Method:
        return self.inner

    def compile_step(self) -> None:
        self.inner.compile_step()

    def release_step(self) -> None:
        self.inner.release_step()

    def remarks(self) -> dict[str, float]:
        return self.inner.remarks()

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        return self.inner.parameter_groups(optim)

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return self.inner.optimizers(optim)

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: Mechanics
    ) -> dict[str, Tensor]:
        return self.inner.update(batch, optimizers, mechanics)

    def why_eager(self) -> str | None:
        return self.inner.why_eager()

    def phase(self) -> Hashable:
        return self.inner.phase()

    def begin_training(self, updates: int) -> None:
        self.inner.begin_training(updates)

    def begin_stage(self, stage: str) -> None:
        self.inner.begin_stage(stage)
        self._begin()

    def begin_epoch(self, epoch: int) -> None:
        self.inner.begin_epoch(epoch)

    def after_update(self) -> None:
        self.inner.after_update()
        self.segment.add(weights_of(self.inner))

    def before_evaluation(self) -> None:
        self.inner.before_evaluation()

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        self.inner.after_evaluation(metrics)
        if "val_loss" not in metrics:
            raise ValueError(
                "hyper.swad finds its valley in the validation loss, and this task has none; it "
                f"measures {', '.join(metrics)}. Turn hyper.swad off, or hold out validation data."
            )
        segment = None if self.valley.dead else self.segment.mean(self.done)
        if self.done is not None:
            self.done += int(self.segment.updates)
        self.segment.clear()
        if segment is None:  # the valley has ended, or no update since the last evaluation
            return
        self.waiting[self.valley.told] = segment
        for number in self.valley.tell(metrics["val_loss"]):
            self.mean = joined(self.mean, self.waiting[number])
        self.waiting = {number: self.waiting[number] for number in self.valley.pending}

    def conclude(self, batches: Batches) -> dict[str, Method]:
        averaged = copy.deepcopy(self.inner)
        mean = self.final_mean()
        if mean is not None:
            with torch.no_grad():
                for own, value in zip(weights_of(averaged), mean.weights, strict=True):
                    own.copy_(value)
            renew_statistics(averaged, batches)
        return {**self.inner.conclude(batches), "swad": averaged.eval()}

    def final_mean(self) -> MeanWeights | None:
        """The mean as it would be if training ended here; None before the first update.

        Without any evaluation it is that of all updates so far.
        """
        mean = self.mean
        for number in self.valley.finish():
            mean = joined(mean, self.waiting[number])
        return self.segment.mean(self.done) if mean is None else mean

    def findings(self) -> dict[str, Finding]:
        """Where the valley was: which updates are averaged, and whether the loss converged.

        Evaluations are numbered from 1, as far as updates came before them: each ends a segment.
        """
        found, mean = self.inner.findings(), self.final_mean()
        if mean is None:
            return found
        threshold = self.valley.threshold
        values: dict[str, float] = {"updates": mean.updates, "converged": threshold is not None}
        words = f"swad averages {mean.updates:,} updates"
        if mean.last is not None:
            first = mean.last - mean.updates + 1
            values |= {"first_update": first, "last_update": mean.last}
            words = f"swad averages updates {first:,} to {mean.last:,}"
        if evaluations := self.valley.extent():
            start, end = evaluations[0] + 1, evaluations[-1] + 1
            values |= {"first_evaluation": start, "last_evaluation": end}
            words += f" (evaluation {end})" if start == end else f" (evaluations {start} to {end})"
        if threshold is None:
            words += (
                ", the last segment alone: the validation loss never converged (hyper.swad-converge"
                f" {self.valley.converge} in {self.valley.told} evaluations)"
            )
        else:
            values["threshold"] = threshold
            words += f"; the threshold of the validation loss is {threshold:.4g}"
        return {**found, "swad": Finding(values, f"{words}.", threshold is None)}

    def get_extra_state(self) -> dict[str, Any]:
        """What grows and shrinks, and so has no place among the buffers."""
        return {
            "valley": self.valley.state(),
            "waiting": {number: dict(vars(mean)) for number, mean in self.waiting.items()},
            "mean": None if self.mean is None else dict(vars(self.mean)),
            "done": self.done,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.valley.restore(state["valley"])
        self.waiting = {number: MeanWeights(**mean) for number, mean in state["waiting"].items()}
        self.mean = None if state["mean"] is None else MeanWeights(**state["mean"])
        self.done = state.get("done")  # not in checkpoints from before it was kept
