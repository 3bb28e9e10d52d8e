"""The files of a run's folder: what it holds, and whether it may hold this."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.engine.checkpoint import write_atomically
from batchformer.lab.engine.log import read_records
from batchformer.lab.runs.plain import completed

#: Counts up when what a run's folder holds can no longer be read by versions from before.
FORMAT = 1
#: Settings that change no result, so that a run may go on with others.
OF_NO_EFFECT = ("train.workers", "train.parallel", "train.figures")
#: In ``RUNS/RECIPE``: the job of every run that was submitted.
RECORD = "submitted.json"


def recorded(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run that a folder holds, if it holds one.

    Raises:
        ValueError: it cannot be read, or a newer version wrote it.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    config = read_json(path, "trained")
    version = config.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(
            f"{path} is of format {version}, and this version of batchformer reads up to "
            f"{FORMAT}: it was written by a newer one. Use that one: pip install --upgrade "
            "batchformer"
        )
    return config


#: What helps where a file of a run folder is damaged.
ADVICE = "Put the file back, take its folder away, or give --runs another folder"


def read_json(path: Path, needed: str, advice: str = ADVICE) -> dict[str, Any]:
    """The object in a file of ours.

    Args:
        path: the file.
        needed: name of an object that must be in it.
        advice: what to do where it is damaged.

    Raises:
        ValueError: it is damaged; the file is named.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}). {advice}.") from error
    if not isinstance(content, dict) or not isinstance(content.get(needed), dict):
        raise ValueError(f"{path} is damaged: it has no object {needed!r}. {advice}.")
    return content


def has_result(folder: Path) -> bool:
    """Whether a run has come to its end: the last file that it writes is there.

    Raises:
        ValueError: it is there, but not whole; ours are, so somebody cut it in copying.
    """
    path = folder / "result.json"
    if path.exists():
        read_json(path, "metrics", "Remove it, and the same command writes it anew")
        return True
    return False


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run measured; a score that could not be measured is NaN.

    Raises:
        ValueError: the file is damaged.
    """
    result = read_json(folder / "result.json", "metrics")
    metrics = {name: math.nan if v is None else v for name, v in result["metrics"].items()}
    return {**result, "metrics": metrics}


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """What a run measured: its scores as ``metrics``, and what is kept beside them.

    JSON has no NaN and no infinity: such a score is null, which is NaN again where it is read.
    """
    write_json(folder / "result.json", _without_nan(result))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def refuse_other_configuration(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """A folder holds one configuration: mixing two would average what is not comparable.

    Returns:
        What is recorded of the run; None where nothing was trained, and so nothing is mixed.
    """
    before = recorded(folder)
    if before is None or not anything_trained(folder):
        return None
    changed = list(differences(completed(before["trained"]), config["trained"]))
    if changed:
        raise ValueError(
            f"{folder} holds a run of this name with other settings: {'; '.join(changed)}. Give "
            f"--runs another folder, or remove that one."
        )
    return before


def anything_trained(folder: Path) -> bool:
    """Whether a run below, or a part of one, has left more than its configuration."""
    kept = (path for name in ("result.json", "*.pt") for path in folder.rglob(name))
    return any(kept) or any(read_records(path) for path in folder.rglob("metrics.jsonl"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What differs between two configurations, less what has no effect.

    >>> list(differences({"train": {"updates": 6, "workers": 2}}, {"train": {"updates": 7}}))
    ['train.updates was 6, is 7']
    """
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from differences(a, b, f"{prefix}{key}.")
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
