"""Checkpoints that are whole or absent, and known by their own hash.

A checkpoint is named ``<update>.<sha256>.pt``. It is written beside its name, flushed to the disk
and renamed, so that a killed process leaves the old ones or the new one. The two newest are kept:
one that was damaged later is noticed by its hash, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KEPT = 2


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content under this name, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_folder(path.parent)


def save(folder: Path, update: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint and drop all but the newest two."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"{update:09d}.{hashlib.sha256(content).hexdigest()[:32]}.pt"
    write_atomically(path, content)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".*.partial"):
        leftover.unlink(missing_ok=True)
    return path


def load_newest(folder: Path, say: Callable[[str], None] = print) -> dict[str, Any] | None:
    """The newest undamaged checkpoint, or None; what was passed over is said."""
    for path in _newest_first(folder):
        try:
            return load(path)
        except DamagedCheckpoint as error:
            say(f"{error} Falling back to the one before it.")
    return None


def load(path: Path) -> dict[str, Any]:
    """One checkpoint, if its content is what was written; only tensors and plain values."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest()[:32] != path.name.split(".")[1]:
        raise DamagedCheckpoint(f"The checkpoint {path} is damaged: its content has changed.")
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


class DamagedCheckpoint(RuntimeError):
    """A checkpoint whose content is not what its name promises."""


def _newest_first(folder: Path) -> list[Path]:
    # By time, then by name: a run started over in the same folder counts from 0 again.
    found = [path for path in folder.glob("*.*.pt") if not path.name.startswith(".")]
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are durable
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
