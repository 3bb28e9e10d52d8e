"""Checkpoints that are whole or absent, and known by their own hash.

A checkpoint is named ``<update>.<sha256>.pt``, in stages after the first
``stage<number>-<update>.<sha256>.pt``. It is written beside its name, flushed to the disk and
renamed, so that a killed process leaves the old ones or the new one. The newest is the one furthest
in the training, by stage and update: times of files do not survive every copy. The two newest are
kept: one that was damaged later is noticed by its hash, and the one before it is used. It holds
tensors and plain values only, and the number of its format, so that an older version refuses it in
words.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from batchformer.lab.engine.distributed.agreement import first_gives
from batchformer.nn.exchange import ranks

KEPT = 2
#: Counts up when what a checkpoint holds can no longer be read by versions from before.
FORMAT = 1


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content under this name, or nothing.

    Raises:
        OSError: naming the file; what was there before still is, and no partial file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)  # on a full disk it would keep the space
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    _sync_folder(path.parent)


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
    if ranks() == 1:
        return load_newest(folder, say)

    def content() -> bytes | None:
        found = newest(folder, say)
        return None if found is None else found[0].read_bytes()

    sent = first_gives(content)
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


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are durable
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
