"""The files of a run's folder: what it holds, and whether it may hold this."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.engine.checkpoint import write_atomically
from batchformer.recipes.plain import completed

#: Settings that change no result, so that a run may go on with others.
OF_NO_EFFECT = ("train.workers",)


def recorded(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run that a folder holds, if it holds one."""
    path = folder / "config.json"
    config: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return config


def refuse_other_configuration(folder: Path, config: dict[str, Any]) -> None:
    """A folder holds one configuration: mixing two would average what is not comparable."""
    before = recorded(folder)
    if before is None:
        return
    changed = list(_differences(completed(before["trained"]), config["trained"]))
    if changed:
        raise ValueError(
            f"{folder} holds a run of this name with other settings: {'; '.join(changed)}. Give "
            f"--runs another folder, or remove that one."
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differences(a, b, f"{prefix}{key}.")
        elif a != b and f"{prefix}{key}" not in OF_NO_EFFECT:
            yield f"{prefix}{key} was {a}, is {b}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """All of the content, or nothing."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    """Arrays by name, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **figures)
    write_atomically(path, buffer.getvalue())
