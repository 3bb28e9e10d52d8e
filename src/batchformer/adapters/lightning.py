"""Lightning: one callback that attaches, checks, logs the encoder's influence, and exports.

The training step doubles its own targets: ``criterion(logits, match(logits, y))``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from batchformer.adapters.plain_file import write_plain
from batchformer.plug.alive import LOGGED_AS, watched_influence
from batchformer.plug.attach import attach
from batchformer.plug.check import check as check_model
from batchformer.plug.classifier import AttachError
from batchformer.plug.export import plain_state_dict
from batchformer.plug.insertion import find_record

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    needs = "BatchFormerCallback needs lightning: pip install batchformer[lightning]"
    raise ImportError(needs) from error

#: Lightning's callbacks that copy the network at setup; older versions lack the first.
AVERAGES = {"WeightAveraging", "StochasticWeightAveraging"}


class BatchFormerCallback(Callback):  # type: ignore[misc]
    """Attach BatchFormer when fitting is set up, before the optimizers are configured.

    A model that is attached already, as in a second ``fit``, stays as it is. A checkpoint contains
    BatchFormer's keys as well: ``load_from_checkpoint(path, strict=False)`` loads it into the plain
    module, and :func:`batchformer.export` of its state dict has the plain module's keys. ``test``
    with this callback loads it without further options.

    Args:
        model: name of the submodule that is the network; None for the LightningModule itself.
        at: where to attach, as for :func:`batchformer.attach`.
        inputs: a function from a batch to the network's inputs; not needed for pairs ``(x, y)``.
        check: run :func:`batchformer.check` on the first training batch, and raise if it fails.
        watch: at the first batch of every epoch, log ``batchformer_influence``, how far one sample
            can change the loss of another, and warn if weight decay has shrunk the encoder to
            nothing.
        export_to: file for the plain network's state dict, written when fitting ends.
        attach_options: passed on to :func:`batchformer.attach`.
    """

    def __init__(
        self,
        model: str | None = "model",
        at: str | Sequence[str] | None = None,
        *,
        inputs: Callable[[Any], Any] | None = None,
        check: bool = True,
        watch: bool = True,
        export_to: str | os.PathLike[str] | None = None,
        **attach_options: Any,
    ) -> None:
        self.model, self.at, self.inputs = model, at, inputs
        self.export_to, self.attach_options = export_to, attach_options
        self._unchecked, self.watch = check, watch
        self._hooks: list[Any] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        network = self._network(pl_module)
        if find_record(network)[1] is not None:
            return
        if stage == "fit":
            self._refuse_averages_before(trainer)
            attach(network, self.at, **{"verbose": trainer.is_global_zero, **self.attach_options})
        else:
            self._hooks.append(pl_module.register_load_state_dict_pre_hook(_keep_plain))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        seen = batch if self.inputs is None else self.inputs(batch)
        if self._unchecked:
            optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
            try:
                result = check_model(self._network(pl_module), seen, optimizer)
            except (TypeError, RuntimeError) as error:
                raise RuntimeError(
                    f"BatchFormerCallback: check() fails on the first training batch: {error}\n"
                    f"If a batch is not (x, y), pass inputs=, a function from a batch to what the "
                    f"network is called with."
                ) from error
            if result.failures:
                raise RuntimeError(f"BatchFormerCallback, on the first training batch:\n{result}")
            if not result:  # not proven, for example because of noise: no reason to stop training
                warnings.warn(f"BatchFormerCallback, on the first batch:\n{result}", stacklevel=1)
            self._unchecked = False
        if self.watch and batch_idx == 0:
            measured = watched_influence(self._network(pl_module), seen)
            if measured is not None:
                pl_module.log(LOGGED_AS, measured, batch_size=1, rank_zero_only=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.export_to is not None and trainer.is_global_zero:
            example = self.attach_options.get("example")
            write_plain(self._network(pl_module), self.export_to, example)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _refuse_averages_before(self, trainer: Trainer) -> None:
        """Refuse an earlier average: it pairs parameters with those of a plain copy by position."""
        for callback in trainer.callbacks[: trainer.callbacks.index(self)]:
            if AVERAGES & {kind.__name__ for kind in type(callback).__mro__}:
                raise AttachError(
                    f"BatchFormerCallback: {type(callback).__name__} stands before it in "
                    f"callbacks= and has copied the network without its encoder. Put "
                    f"BatchFormerCallback first."
                )

    def _network(self, pl_module: LightningModule) -> nn.Module:
        try:
            network: nn.Module = pl_module.get_submodule(self.model or "")
        except AttributeError as error:
            children = ", ".join(name for name, _ in pl_module.named_children()) or "none"
            raise AttachError(
                f"BatchFormerCallback: {type(pl_module).__name__} has no submodule {self.model!r} "
                f"at setup; its children: {children}. Pass the name of one as model=, or None for "
                f"the LightningModule itself."
            ) from error
        return network


def _keep_plain(_: nn.Module, state_dict: dict[str, Any], *rest: object) -> None:
    for key in state_dict.keys() - plain_state_dict(state_dict).keys():
        del state_dict[key]
