"""Hugging Face ``Trainer``: labels are doubled while an attached model trains.

Call ``attach(model)`` first, then ``BatchFormerTrainer(model=model, args=args, ...)`` as usual: the
model computes its own loss on 2N rows. Evaluation uses the plain model. A checkpoint has additional
keys that contain ``.batchformer.``, which ``from_pretrained`` reports and ignores.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from batchformer.nn.arguments import real_numbers
from batchformer.nn.module import encoders_of, parameter_ids
from batchformer.nn.streams import duplicate
from batchformer.plug.alive import LOGGED_AS, watched_influence
from batchformer.plug.insertion import WithBatchFormer


class BatchFormerMixin:
    """For your own trainer: ``class MyTrainer(BatchFormerMixin, Trainer)``.

    Label smoothing, ``compute_loss_func`` and every problem type get doubled labels. The number of
    items that gradient accumulation divides by is doubled as well. An optimizer that the trainer
    builds gets BatchFormer's parameters in groups of their own.

    Attributes:
        batchformer_lr_factor: BatchFormer's learning rate, as a multiple of the model's.
        batchformer_watch: log ``batchformer_influence`` beside the training loss, how far one
            sample can change the loss of another, and warn if weight decay has shrunk the encoder
            to nothing.
    """

    batchformer_lr_factor: float = 0.1
    batchformer_watch: bool = True
    _last_inputs: Mapping[str, Any] | None = None
    model: nn.Module
    optimizer: Optimizer | None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **options: Any,
    ) -> Any:
        names = {"labels", *getattr(self, "label_names", ())}
        if self.batchformer_watch and any(encoder.training for encoder in encoders_of(model)):
            self._last_inputs = {key: inputs[key] for key in inputs if key not in names}
        if gives_two_streams(model):
            if isinstance(model, nn.DataParallel):
                raise RuntimeError(
                    "nn.DataParallel would send the doubled labels to the wrong devices. Start one "
                    "process for each GPU with torchrun, or set CUDA_VISIBLE_DEVICES=0."
                )
            doubled = {key: duplicate(inputs[key]) for key in inputs if key in names}
            inputs = {**inputs, **doubled}
            num_items_in_batch = None if num_items_in_batch is None else 2 * num_items_in_batch
        # By keyword, as Trainer does: a trainer of the user's may take it in ``**kwargs``.
        options["num_items_in_batch"] = num_items_in_batch
        return super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, **options
        )

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        if "loss" in logs and self._last_inputs is not None:
            measured = watched_influence(self.model, self._last_inputs)
            logs = logs if measured is None else {**logs, LOGGED_AS: measured}
        super().log(logs, *args, **options)  # type: ignore[misc]

    def create_optimizer(self, *args: Any, **options: Any) -> Optimizer:
        given = self.optimizer
        optimizer: Optimizer = super().create_optimizer(*args, **options)  # type: ignore[misc]
        if not encoders_of(self.model):
            warnings.warn(
                f"{type(self).__name__}: BatchFormer is not attached to this model, so it trains "
                f"without it. Call batchformer.attach(model) before you build the trainer.",
                stacklevel=2,
            )
        elif given is None:
            scale_learning_rate(optimizer, self.model, self.batchformer_lr_factor)
        return optimizer


def gives_two_streams(model: nn.Module) -> bool:
    """Whether this model, wrapped or not, now returns 2N rows for N samples."""
    places = (m._place for m in model.modules() if isinstance(m, WithBatchFormer))
    return any(place.role == "double" and place.encoder.training for place in places)


def scale_learning_rate(optimizer: Optimizer, model: nn.Module, factor: float) -> None:
    """Move BatchFormer's parameters into copies of their groups, with ``factor`` times the rate."""
    real_numbers("BatchFormerTrainer", batchformer_lr_factor=factor)
    mine = parameter_ids(encoders_of(model))
    for group in list(optimizer.param_groups):
        moved = [p for p in group["params"] if id(p) in mine]
        if moved:
            group["params"] = [p for p in group["params"] if id(p) not in mine]
            own = {"params": moved, "lr": group["lr"] * factor, "name": "batchformer"}
            optimizer.add_param_group({**group, **own})


def __getattr__(name: str) -> Any:
    if name != "BatchFormerTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from transformers import Trainer
    except ImportError as error:
        raise ImportError(f"{name} needs transformers: pip install batchformer[hf]") from error
    made = type(name, (BatchFormerMixin, Trainer), {"__module__": __name__})
    return globals().setdefault(name, made)
