"""Checkpoints: files that are complete or absent, and the state of a training in them.

A checkpoint is named ``<update>.<sha256>.pt``. It is written beside its name, flushed to the disk
and renamed, so a killed process leaves the old files or the new one. The newest checkpoint is the
one furthest in the training, because copies may lose the times of files. The two newest are kept:
if the hash shows that one was damaged later, the one before it is used.

A checkpoint holds tensors and plain values only, and its format number, so that a version that
cannot read it can say so.
"""

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

from batchformer.insight.files import write_atomically
from batchformer.lab.engine.distributed.gradients import broadcast_state
from batchformer.lab.engine.distributed.rank_zero import bytes_from_rank_zero
from batchformer.lab.engine.distributed.sharding import (
    full_tensors,
    replicated_tensors,
    sharded_moments,
    sharded_state,
)
from batchformer.lab.engine.optim import load_optimizer_state, optimizer_state
from batchformer.nn.exchange import is_rank_zero, world_size

if TYPE_CHECKING:
    from batchformer.lab.engine.state import TrainingState

KEPT = 2
#: Increases when earlier versions can no longer read a checkpoint.
FORMAT = 1
_NAME = re.compile(r"(\d+)\.[0-9a-f]+\.pt")


class DamagedCheckpoint(RuntimeError):
    """The content of a checkpoint does not match the hash in its name."""


class RefusedCheckpoint(ValueError):
    """A checkpoint is complete, but this version cannot read it, or it cannot be trusted."""


# Files.


def save(folder: Path, update: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint; remove others of the same update and all but the newest two.

    Only rank 0 calls it.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    content = buffer.getvalue()
    path = folder / f"{update:09d}.{_hash(content)}.pt"
    write_atomically(path, content)
    others = [other for other in _newest_first(folder) if other.name != path.name]
    same_update = [other for other in others if _update(other) == update]
    earlier = [other for other in others if other not in same_update]
    for old in (*same_update, *earlier[KEPT - 1 :]):
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".*.partial"):
        leftover.unlink(missing_ok=True)
    return path


def load_newest(folder: Path, say: Callable[[str], None] = print) -> dict[str, Any] | None:
    """The newest undamaged checkpoint, or None; `say` receives a line for each damaged one."""
    found = _newest(folder, say)
    return None if found is None else found[1]


def load_newest_on_rank_zero(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The same on all ranks: only rank 0 reads the folder, and sends the checkpoint."""
    if world_size() == 1:
        return load_newest(folder, say)

    def content() -> bytes | None:
        found = _newest(folder, say)
        return None if found is None else found[0].read_bytes()

    sent = bytes_from_rank_zero(content)
    return None if sent is None else read(sent, folder)


def load(path: Path) -> dict[str, Any]:
    """One checkpoint; only tensors and plain values are read.

    Raises:
        DamagedCheckpoint: the content does not match the hash in its name.
        RefusedCheckpoint: this version does not read it.
    """
    content = path.read_bytes()
    if _hash(content) != path.name.split(".")[1]:
        raise DamagedCheckpoint(f"The checkpoint {path} is damaged: its content has changed.")
    return read(content, path)


def read(content: bytes, path: Path) -> dict[str, Any]:
    """The state in the bytes of a checkpoint; only tensors and plain values are read."""
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedCheckpoint(
            f"The checkpoint {path} holds more than tensors and plain values. It was read with "
            "weights_only, so no code in it was run; do not trust it, and remove it."
        ) from error
    if not isinstance(state, dict):
        raise RefusedCheckpoint(
            f"The checkpoint {path} holds a {type(state).__name__} instead of a dict; remove it."
        )
    version = state.pop("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise RefusedCheckpoint(
            f"The checkpoint {path} is of format {version}, and this version of batchformer reads "
            f"up to {FORMAT}: it was written by a newer one. Use that one: pip install --upgrade "
            "batchformer"
        )
    return state


def remove_outdated(folder: Path, update: int, resumed: bool) -> None:
    """Remove all networks in a run's folder that a training from this update writes again.

    The best and averaged networks of this very update go too, because it is evaluated again.
    Otherwise a network of a lost training could pass for the newest.

    Args:
        update: the first that is still to be trained.
        resumed: whether the training continues from a checkpoint of this update, which stays.
    """
    if not is_rank_zero():
        return
    for subfolder in {path.parent for path in folder.glob("*/*.pt")}:
        first = update + (resumed and subfolder.name == "checkpoints")
        for path in _newest_first(subfolder):
            if _update(path) >= first:
                path.unlink(missing_ok=True)


def _newest(folder: Path, say: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The file of the newest undamaged checkpoint, and its state."""
    found = _newest_first(folder)
    for path in found:
        try:
            return path, load(path)
        except DamagedCheckpoint as error:
            last = path == found[-1]
            then = "There is none before it." if last else "Falling back to the one before it."
            say(f"{error} {then}")
    return None


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_update(path), path.name), reverse=True)


def _update(path: Path) -> int:
    """The update of a checkpoint, by its name."""
    return int(path.name.partition(".")[0])


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


# The state of a training. All ranks gather it together, and rank 0 writes it.


def state_of_training(training: TrainingState) -> dict[str, Any]:
    """All that a checkpoint holds; every rank calls it."""
    window = training.window.state()  # first: it raises before a diverged state is saved
    average = None if training.average is None else state_of_model(training.average)
    optimizers = {name: optimizer_state(o) for name, o in training.optimizers.items()}
    return {
        "method": state_of_model(training.method),
        "optimizers": full_tensors(optimizers),
        "scaler": training.optimizer_step.scaler.state_dict(),
        "average": average,
        "swad": None if training.swad is None else state_of_model(training.swad),
        "counters": training.counters,
        "best": training.best,
        "window": window,
        # Our draws are functions of the update; this is for code that uses torch's generator.
        "rng": torch.get_rng_state(),
    }


def restore_training(training: TrainingState, state: dict[str, Any]) -> None:
    """Continue from the state of a checkpoint."""
    load_model(training.method, state["method"])
    for name, optimizer in training.optimizers.items():
        load_optimizer_state(optimizer, sharded_moments(optimizer, state["optimizers"][name]))
    training.optimizer_step.scaler.load_state_dict(state["scaler"])
    if training.average is not None:
        training.average.load_state_dict(state["average"])
    if training.swad is not None:
        load_model(training.swad, state["swad"])
    counters, training.best = state["counters"], state["best"]
    training.counters = {"update": int(counters["update"]), "seconds": float(counters["seconds"])}
    training.window.restore(state["window"])
    torch.set_rng_state(state["rng"])


@contextmanager
def explain_mismatch(folder: Path) -> Iterator[None]:
    """Turn errors of loading a state into one that says it does not fit this training."""
    try:
        yield
    except torch.OutOfMemoryError:  # not caused by the state
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"The newest checkpoint in {folder} is not of this training ({reason[:200]}). Give "
            "--runs another folder, or remove what does not belong in that one."
        ) from error


def state_of_model(model: nn.Module) -> Mapping[str, Any]:
    """The state dict of rank 0, with full tensors; every rank calls it."""
    sync_state(model)
    state: Mapping[str, Any] = model.state_dict()
    return state if world_size() == 1 else full_tensors(state)


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state dict of full tensors."""
    model.load_state_dict(state if world_size() == 1 else sharded_state(model, state))


def sync_state(model: nn.Module) -> None:
    """Copy rank 0's state to all ranks, since each keeps its own batch-norm statistics."""
    if world_size() > 1:
        broadcast_state(replicated_tensors(model))
