"""The contract between the loop and what is trained."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optim import build_optimizer
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.plug.attach import param_groups

if TYPE_CHECKING:
    from batchformer.insight.relations import Relations


class Batches(Protocol):
    """Where batches come from: a function of the step."""

    @property
    def per_epoch(self) -> int: ...

    def batch(self, step: int) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Finding:
    """What a training found that is no score.

    Args:
        values: for its record in ``metrics.jsonl``, and for ``result.json``.
        words: the same as one line.
        unexpected: whether a person should read that line, even when quiet.
    """

    values: Mapping[str, float]
    words: str
    unexpected: bool = False


class Method(nn.Module):
    """What one training step computes, and what the trained network predicts.

    A method implements :meth:`step` and :meth:`predict`; the rest has defaults.
    """

    module_lr_factor: float = 1.0
    """BatchFormer's learning rate as a multiple of the network's."""

    stages: tuple[str, ...] = ("train",)
    """Named phases, run one after the other, each with optimizers and a schedule of its own."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The losses of a batch: ``{"loss": ..., and parts worth logging}``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement step()")

    def predict(self, x: Tensor) -> Tensor:
        """Logits ``(N, K)`` of the plain network, as it will be deployed."""
        raise NotImplementedError(f"{type(self).__name__} does not implement predict()")

    def deployed(self) -> nn.Module:
        """The network that is exported: what predictions need, without BatchFormer."""
        network = getattr(self, "network", None)
        if not isinstance(network, nn.Module):
            raise NotImplementedError(f"{type(self).__name__} does not implement deployed()")
        return network

    def scored(self) -> Method:
        """What an evaluation scores: itself, or what it is wrapped around."""
        return self

    def relations(self) -> Relations | None:
        """Where samples meet, for figures of it; None where there is nothing of the kind."""
        return None

    def compile_step(self) -> None:
        """Let :meth:`update` call a compiled step from here on."""
        self.__dict__["step"] = torch.compile(self.step)

    def release_step(self) -> None:
        """Undo :meth:`compile_step`."""
        self.__dict__.pop("step", None)

    def remarks(self) -> dict[str, float]:
        """Scores in percent, higher is better, of how predictions were made since last asked."""
        return {}

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Every trainable parameter exactly once."""
        return param_groups(self, optim.lr, self.module_lr_factor)

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        """Optimizers by name; several where parts are trained against one another."""
        return {"main": build_optimizer(self.parameter_groups(optim), optim)}

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: OptimizerStep
    ) -> dict[str, Tensor]:
        """The whole update; by default one step of one optimizer."""
        return mechanics.minimise(self.step, batch, optimizers["main"], self.parameters())

    def why_eager(self) -> str | None:
        """Why an update cannot be recorded once and replayed; None if it can.

        It can if shapes are static, random numbers are drawn on the device, nothing is read back
        from it, and what Python decides is in :meth:`phase`.
        """
        return None

    def phase(self) -> Hashable:
        """What an update depends on besides its batch and the state of tensors."""
        return None

    def begin_stage(self, stage: str) -> None:
        """Called before the first update of a stage, also when resuming inside it."""

    def begin_training(self, updates: int) -> None:
        """Called with the updates of a stage in all, before the first, also when resuming."""

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first update of an epoch, also when resuming inside it."""

    def after_update(self) -> None:
        """Called after every update: momentum encoders, queues, weight averages.

        On a GPU it is recorded with the update, so what it does is done on the device.
        """

    def before_evaluation(self) -> None:
        """Called before every evaluation, in training mode and with gradients: classifiers that
        are trained for it."""

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Called after every evaluation with what it measured, in training mode."""

    def conclude(self, batches: Batches) -> dict[str, Method]:
        """Other networks that the same training gave, by name, to be scored at its end.

        They are what is reported; scores of the network that was trained follow as those
        ``without_NAME``.

        Args:
            batches: of the training, for statistics of normalisation.
        """
        return {}

    def findings(self) -> dict[str, Finding]:
        """What the training found that is no score, by the kind of its record; at its end."""
        return {}
