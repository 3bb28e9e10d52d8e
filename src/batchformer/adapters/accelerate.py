"""Accelerate: attach before ``prepare``, log the encoder's influence, and save the plain model.

In the training step only the targets change::

    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            logits = model(x)
            accelerator.backward(criterion(logits, match(logits, y)))
            optimizer.step()
            optimizer.zero_grad()
        log_influence(accelerator, model, x)  # once an epoch: does the encoder still act?
    save_plain(accelerator, model, "model.pt")

Gradient accumulation does not enlarge the batch in which samples attend to one another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from batchformer.adapters.plain_file import write_plain
from batchformer.plug.alive import LOGGED_AS, watched_influence
from batchformer.plug.attach import attach

if TYPE_CHECKING:
    from accelerate import Accelerator


def prepare(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    *others: Any,
    **attach_options: Any,
) -> tuple[Any, ...]:
    """``attach(model, optimizer=optimizer)``, then ``accelerator.prepare`` in the same order.

    Args:
        others: loaders, schedulers and further models, passed on.
        attach_options: passed on to :func:`batchformer.attach`.

    Raises:
        ValueError: a scheduler among ``others`` was built before BatchFormer's group was added.
    """
    for other in others:
        if getattr(other, "optimizer", None) is optimizer and hasattr(other, "base_lrs"):
            raise ValueError(
                f"prepare(): {type(other).__name__} was built before BatchFormer's parameter group "
                f"and would never set its learning rate. Call attach(model, optimizer=optimizer), "
                f"build the scheduler, then accelerator.prepare(model, optimizer, ...)."
            )
    attach_options.setdefault("verbose", accelerator.is_main_process)
    attach(model, optimizer=optimizer, **attach_options)
    return tuple(accelerator.prepare(model, optimizer, *others))


def log_influence(
    accelerator: Accelerator, model: nn.Module, batch: Any, step: int | None = None
) -> float | None:
    """Log ``batchformer_influence`` to the trackers: how far one sample changes another's loss.

    Warns if weight decay has shrunk the encoder to nothing. Returns the number, or None if the
    batch cannot show it (a single sample). Every process may call it; see
    :func:`batchformer.plug.alive.influence`.
    """
    measured = watched_influence(accelerator.unwrap_model(model), batch)
    if measured is not None:
        accelerator.log({LOGGED_AS: measured}, step=step)
    return measured


def save_plain(
    accelerator: Accelerator, model: nn.Module, path: str | os.PathLike[str], example: Any = None
) -> None:
    """Write the plain model's state dict from the main process; every process calls it.

    It cannot copy sharded parameters (FSDP). There, on every process, use
    ``batchformer.export(accelerator.get_state_dict(model))``.

    Args:
        model: as ``prepare`` returned it.
        path: read it with ``torch.load(path, weights_only=True)``.
        example: one small batch as the model is called with it, if none can be guessed.
    """
    if accelerator.is_main_process:
        write_plain(accelerator.unwrap_model(model), path, example)
    accelerator.wait_for_everyone()
