"""The state of a stage: put into a checkpoint whole, and taken out of one.

With several ranks every rank takes part in putting it together, and rank 0 writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.distributed.in_step import take_from_first
from batchformer.lab.engine.distributed.sharding import (
    dealt_moments,
    dealt_state,
    plain_tensors,
    whole,
)
from batchformer.lab.engine.optim import load_state, state_of
from batchformer.nn.exchange import leads, ranks

if TYPE_CHECKING:
    from batchformer.lab.engine.stage import Stage


@contextmanager
def of_this_training(folder: Path) -> Iterator[None]:
    """Say in words that the state of a folder does not fit what is trained in it."""
    try:
        yield
    except torch.OutOfMemoryError:  # no fault of the state
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"The newest checkpoint in {folder} is not of this training ({reason[:200]}). Give "
            "--runs another folder, or remove what does not belong in that one."
        ) from error


def state_of_stage(stage: Stage) -> dict[str, Any]:
    """All that a checkpoint holds; every rank calls it."""
    window = stage.window.state()  # first: raises before anything bad is kept
    average = None if stage.average is None else state_of_model(stage.average)
    return {
        "method": state_of_model(stage.method),
        "optimizers": whole({name: state_of(o) for name, o in stage.optimizers.items()}),
        "scaler": stage.mechanics.scaler.state_dict(),
        "average": average,
        "counters": stage.counters,
        "best": stage.best,
        "window": window,
        # Draws are functions of the update; torch's own state serves code that ignores that.
        "rng": torch.get_rng_state(),
    }


def restore_stage(stage: Stage, state: dict[str, Any]) -> None:
    """Go on where a checkpoint was written."""
    load_model(stage.method, state["method"])
    for name, optimizer in stage.optimizers.items():
        load_state(optimizer, dealt_moments(optimizer, state["optimizers"][name]))
    stage.mechanics.scaler.load_state_dict(state["scaler"])
    if stage.average is not None:
        stage.average.load_state_dict(state["average"])
    stage.counters, stage.best = state["counters"], state["best"]
    stage.window.restore(state["window"])
    torch.set_rng_state(state["rng"])


def save(folder: Path, update: int, state: dict[str, Any], stage: int = 0) -> None:
    """Write a checkpoint, on the rank that writes."""
    if leads():
        checkpoint.save(folder, update, state, stage)


def remove_later(folder: Path, stage: int, update: int, resumed: bool) -> None:
    """Remove from the folder of a run what a training that begins here will write again.

    Best and averaged networks of this update go as well: the update is evaluated again. Otherwise
    one from a training that was lost could be taken for the newest.

    Args:
        folder: of the run.
        stage: its number.
        update: the first that is still to be trained.
        resumed: whether the training goes on from a checkpoint of this update, which stays.
    """
    if leads():
        for kept in {path.parent for path in folder.glob("*/*.pt")}:
            stays = resumed and kept.name == "checkpoints"
            checkpoint.remove_from(kept, stage, update + stays)


def state_of_model(model: nn.Module) -> Mapping[str, Any]:
    """Its state dict, of whole tensors and those of rank 0; every rank calls it."""
    one_state(model)
    state: Mapping[str, Any] = model.state_dict()
    return state if ranks() == 1 else whole(state)


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Take over a state dict of whole tensors."""
    model.load_state_dict(state if ranks() == 1 else dealt_state(model, state))


def one_state(model: nn.Module) -> None:
    """Let every rank have what rank 0 has: statistics of batches are those of each rank's own."""
    if ranks() > 1:
        take_from_first(plain_tensors(model))
