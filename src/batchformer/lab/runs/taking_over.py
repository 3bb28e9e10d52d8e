"""Runs that were trained already under another name: copied, not trained again."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchformer.lab.engine.checkpoint import write_atomically
from batchformer.lab.engine.log import read_records
from batchformer.lab.models.weights import file_hash
from batchformer.lab.recipes.sweep import WORDS
from batchformer.lab.runs.folder import differences, has_result, read_json, recorded, write_json
from batchformer.lab.runs.plain import as_plain, completed
from batchformer.lab.runs.run import Run

#: In ``RUNS/SWEEP``: how the runs of a sweep belong together.
DESCRIPTION = "sweep.json"


def take_over(runs: Sequence[Run], base: str, root: Path) -> None:
    """Copy what was trained under another name to runs that are not begun; say which on stderr.

    Args:
        runs: of a sweep; no other process trains them.
        base: name of the recipe that is varied.
        root: folder of all runs.
    """
    taken = []
    for one in runs:
        if one.folder.exists():
            continue
        source = next((path for path in _elsewhere(one, base, root) if _holds(path, one)), None)
        if source is not None:
            words, name = as_plain(one.recipe), source.relative_to(root).as_posix()
            copy_run(source, one.folder, {word: words[word] for word in WORDS}, name)
            taken.append(name)
    if taken:
        count = "1 run was" if len(taken) == 1 else f"{len(taken)} runs were"
        print(f"{count} trained already, and taken over: {', '.join(taken)}", file=sys.stderr)


def _elsewhere(one: Run, base: str, root: Path) -> Iterator[Path]:
    """Where the same may have been trained: by a comparison of the base, then in sweeps."""
    place = f"{one.arm}/seed{one.seed}"
    yield root / base / place
    for description in sorted(root.glob(f"*/{DESCRIPTION}")):
        yield from sorted(description.parent.glob(f"*/{place}"))


def _holds(folder: Path, one: Run) -> bool:
    """Whether a folder holds this run, finished and undamaged, under whatever name."""
    try:
        config = recorded(folder) or {}
    except (OSError, ValueError):
        return False
    if (config.get("arm"), config.get("seed")) != (one.arm, one.seed):
        return False
    wanted = {"recipe": as_plain(one.recipe), "trained": as_plain(one.settled())}
    same = all(
        not any(differences(_less_words(completed(config.get(part, {}))), _less_words(plain)))
        for part, plain in wanted.items()
    )
    # Last what takes longest: files are unpacked, data are read.
    return (
        same
        and is_whole(folder)
        and all(config.get(key) == value for key, value in _found(one).items())
    )


def _less_words(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if key not in WORDS}


def _found(one: Run) -> dict[str, Any]:
    """What a run records beside its settings: of the data, and of the weights it begins with."""
    task, file = one.task, one.weights_file()
    weights = file and {"file": str(file), "sha256": file_hash(file)}
    found = {"data": task.facts(), "draws": task.draws() or None, "weights": weights}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def is_whole(folder: Path) -> bool:
    """Whether a run has finished, and every file that a report needs is as it was written."""
    try:
        inside = [path.parent for path in folder.rglob("config.json")]  # several: one for each part
        return recorded(folder) is not None and all(map(_is_whole, inside))
    except (OSError, ValueError):
        return False


def _is_whole(folder: Path) -> bool:
    read_json(folder / "config.json", "recipe")
    arrays = [path for path in folder.glob("*.npz") if path.name != "figures.npz"]
    return (
        has_result(folder)
        and bool(read_records(folder / "metrics.jsonl"))
        and all(map(_unpacks, [folder / "figures.npz", *arrays]))
    )


def _unpacks(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as arrays:
            return arrays.testzip() is None
    except (zipfile.BadZipFile, zlib.error):
        return False


def copy_run(source: Path, folder: Path, words: Mapping[str, Any], origin: str) -> None:
    """A finished run under another name: all of it, or nothing.

    The copy says as ``taken_from`` where it was trained, and keeps its provenance. Checkpoints are
    shared with the source where the file system can do that, for nothing changes their content.

    Args:
        source: folder of the run.
        folder: of the copy, which is not there yet.
        words: settings of its recipe that change no number, and are others here.
        origin: what ``taken_from`` says, where the source was not itself taken over.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                _copy_file(path, partial / path.relative_to(source))
        for path in partial.rglob("config.json"):
            config = {"taken_from": origin, **read_json(path, "trained")}
            renamed = {part: {**config[part], **words} for part in ("recipe", "trained")}
            write_json(path, {**config, **renamed})
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _copy_file(path: Path, target: Path) -> None:
    if path.suffix != ".pt":
        write_atomically(target, path.read_bytes())
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:  # a file system without links, or a file of somebody else
        shutil.copyfile(path, target)
