"""Checkpoints that are whole or absent, and the state of a stage in them."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from batchformer.lab.engine.distributed.gradients import broadcast_state
from batchformer.lab.engine.distributed.rank_zero import bytes_from_rank_zero
from batchformer.lab.engine.distributed.sharding import (
    dealt_moments,
    dealt_state,
    plain_tensors,
    whole,
)
from batchformer.lab.engine.optim import load_state, state_of
from batchformer.nn.exchange import is_rank_zero, world_size
from batchformer.plug.files import write_atomically

if TYPE_CHECKING:
    from batchformer.lab.engine.stage import Stage

# Checkpoints that are whole or absent, and known by their own hash.
#
# A checkpoint is named ``<update>.<sha256>.pt``, in stages after the first
# ``stage<number>-<update>.<sha256>.pt``. It is written beside its name, flushed to the disk and
# renamed, so that a killed process leaves the old ones or the new one. The newest is the one
# furthest in the training, by stage and update: times of files do not survive every copy. The two
# newest are kept: one that was damaged later is noticed by its hash, and the one before it is used.
# It holds tensors and plain values only, and the number of its format, so that an older version
# refuses it in words.

KEPT = 2
#: Counts up when what a checkpoint holds can no longer be read by versions from before.
FORMAT = 1


def save(folder: Path, update: int, state: dict[str, Any], stage: int = 0) -> Path:
    """Write a checkpoint and drop all but the newest two, and others of the same update."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    content = buffer.getvalue()
    of_stage = f"stage{stage}-" if stage else ""
    path = folder / f"{of_stage}{update:09d}.{hashlib.sha256(content).hexdigest()[:32]}.pt"
    write_atomically(path, content)
    others = [other for other in _newest_first(folder) if other.name != path.name]
    again = [other for other in others if _position(other) == (stage, update)]
    for old in (*again, *[other for other in others if other not in again][KEPT - 1 :]):
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".*.partial"):
        leftover.unlink(missing_ok=True)
    return path


def remove_from(folder: Path, stage: int, update: int) -> None:
    """Remove the checkpoints of this update and of later ones, before it is trained again."""
    for path in _newest_first(folder):
        if _position(path) >= (stage, update):
            path.unlink(missing_ok=True)


def load_newest(folder: Path, say: Callable[[str], None] = print) -> dict[str, Any] | None:
    """The newest undamaged checkpoint, or None; what was passed over is said."""
    found = newest(folder, say)
    return None if found is None else found[1]


def load_newest_of_first(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The same on all ranks, of which only rank 0 looks into the folder and sends what it found."""
    if world_size() == 1:
        return load_newest(folder, say)

    def content() -> bytes | None:
        found = newest(folder, say)
        return None if found is None else found[0].read_bytes()

    sent = bytes_from_rank_zero(content)
    return None if sent is None else read(sent, folder)


def newest(folder: Path, say: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The file of the newest undamaged checkpoint, and what it holds."""
    found = _newest_first(folder)
    for path in found:
        try:
            return path, load(path)
        except DamagedCheckpoint as error:
            last = path == found[-1]
            then = "There is none before it." if last else "Falling back to the one before it."
            say(f"{error} {then}")
    return None


def load(path: Path) -> dict[str, Any]:
    """One checkpoint, if its content is what was written; only tensors and plain values.

    Raises:
        DamagedCheckpoint: the content is not what its name promises.
        RefusedCheckpoint: it is what somebody wrote, but nothing that this version reads.
    """
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest()[:32] != path.name.split(".")[1]:
        raise DamagedCheckpoint(f"The checkpoint {path} is damaged: its content has changed.")
    return read(content, path)


def read(content: bytes, path: Path) -> dict[str, Any]:
    """What the bytes of a checkpoint hold; only tensors and plain values.

    Args:
        content: of the file.
        path: to name it by.

    Raises:
        RefusedCheckpoint: it is what somebody wrote, but nothing that this version reads.
    """
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedCheckpoint(
            f"The checkpoint {path} holds more than tensors and plain values. It was read with "
            "weights_only, and nothing in it was run; do not trust it, and remove it."
        ) from error
    if not isinstance(state, dict):
        raise RefusedCheckpoint(
            f"The checkpoint {path} holds a {type(state).__name__} where a dict was written; "
            "remove it."
        )
    version = state.pop("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise RefusedCheckpoint(
            f"The checkpoint {path} is of format {version}, and this version of batchformer reads "
            f"up to {FORMAT}: it was written by a newer one. Use that one: pip install --upgrade "
            "batchformer"
        )
    return state


class DamagedCheckpoint(RuntimeError):
    """A checkpoint whose content is not what its name promises."""


class RefusedCheckpoint(ValueError):
    """A checkpoint that is whole, but not for this version, or not to be trusted."""


_NAME = re.compile(r"(?:stage(\d+)-)?(\d+)\.[0-9a-f]+\.pt")


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_position(path), path.name), reverse=True)


def _position(path: Path) -> tuple[int, int]:
    """Stage and update of a checkpoint, by its name."""
    named = _NAME.fullmatch(path.name)
    assert named is not None
    return int(named[1] or 0), int(named[2])


# The state of a stage: put into a checkpoint whole, and taken out of one.
#
# With several ranks every rank takes part in putting it together, and rank 0 writes it.


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


def save_stage(folder: Path, update: int, state: dict[str, Any], stage: int = 0) -> None:
    """Write a checkpoint, on the rank that writes."""
    if is_rank_zero():
        save(folder, update, state, stage)


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
    if is_rank_zero():
        for kept in {path.parent for path in folder.glob("*/*.pt")}:
            stays = resumed and kept.name == "checkpoints"
            remove_from(kept, stage, update + stays)


def state_of_model(model: nn.Module) -> Mapping[str, Any]:
    """Its state dict, of whole tensors and those of rank 0; every rank calls it."""
    one_state(model)
    state: Mapping[str, Any] = model.state_dict()
    return state if world_size() == 1 else whole(state)


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Take over a state dict of whole tensors."""
    model.load_state_dict(state if world_size() == 1 else dealt_state(model, state))


def one_state(model: nn.Module) -> None:
    """Let every rank have what rank 0 has: statistics of batches are those of each rank's own."""
    if world_size() > 1:
        broadcast_state(plain_tensors(model))
