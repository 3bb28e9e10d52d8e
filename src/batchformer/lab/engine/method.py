"""The contract between the training loop and a method."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optim import build_optimizer
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.plug.attach import param_groups

if TYPE_CHECKING:
    from batchformer.insight.relations import Relations


class Batches(Protocol):
    """Where batches come from; a batch is a function of the update."""

    @property
    def per_epoch(self) -> int: ...

    def batch(self, step: int) -> dict[str, Any]: ...


class Method(nn.Module):
    """What one training step computes, and what the trained network predicts.

    A method implements :meth:`step` and :meth:`predict`; the rest has defaults.
    """

    module_lr_factor: float = 1.0
    """BatchFormer's learning rate as a multiple of the network's."""

    epochs: float = 0.0
    """Epochs of the training, for schedules of a method's own; the loop sets it."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The losses of a batch: ``{"loss": ..., and parts worth logging}``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement step()")

    def predict(self, x: Tensor) -> Tensor:
        """Logits ``(N, K)`` of the plain network, as it will be deployed."""
        raise NotImplementedError(f"{type(self).__name__} does not implement predict()")

    def forward_inputs(self, batch: Batch) -> Any:
        """The inputs of :meth:`forward` for some samples of a batch; ``check`` uses them."""
        return batch["x"][:32]

    def deployed(self) -> nn.Module:
        """The network that is exported: what predictions need, without BatchFormer."""
        network = getattr(self, "network", None)
        if not isinstance(network, nn.Module):
            raise NotImplementedError(f"{type(self).__name__} does not implement deployed()")
        return network

    def relations(self) -> Relations | None:
        """Where samples attend to one another, for figures; None if they do not."""
        return None

    def compile_step(self) -> None:
        """Let :meth:`update` call a compiled step from here on."""
        self.__dict__["step"] = torch.compile(self.step)

    def release_step(self) -> None:
        """Undo :meth:`compile_step`."""
        self.__dict__.pop("step", None)

    def further_scores(self) -> dict[str, float]:
        """Further scores, in percent, of the predictions since the last call; higher is better."""
        return {}

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Parameter groups that hold every trainable parameter exactly once."""
        return param_groups(self, optim.lr, self.module_lr_factor)

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        """Optimizers by name; several if parts are trained against one another."""
        return {"main": build_optimizer(self.parameter_groups(optim), optim)}

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        """The whole update; by default one step of one optimizer."""
        return optimizer_step.minimise(self.step, batch, optimizers["main"], self.parameters())

    def why_eager(self) -> str | None:
        """Why an update cannot be captured as a CUDA graph; None if it can.

        It can if shapes are static, random numbers are drawn on the device, nothing is read back
        from it, and all that Python branches on is in :meth:`phase`.
        """
        return None

    def phase(self) -> Hashable:
        """What an update depends on besides its batch and the values of tensors."""
        return None

    def begin_training(self, updates: int) -> None:
        """Called before the first update, also when resuming, with the number of updates."""

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first update of an epoch, also when resuming inside it."""

    def after_update(self) -> None:
        """Called after every update: momentum encoders, queues, weight averages.

        On a GPU it is captured with the update, so it must work on the device.
        """

    def before_evaluation(self) -> None:
        """Called before every evaluation, in training mode and with gradients, for example to
        train a classifier."""


class Untrained(Method):
    """A method that trains nothing: its updates only log the loss of its predictions."""

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return {}

    @torch.no_grad()
    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        """The cross-entropy of the predictions, for the log."""
        with optimizer_step.autocast():
            loss = F.cross_entropy(self.predict(batch["x"]), batch["y"])
        return {"loss": loss.float()}
