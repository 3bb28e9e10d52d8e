"""A sweep's runs, and runs that are reused under another name."""

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

import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.distributed.rank_zero import on_rank_zero
from batchformer.lab.engine.log import read_records
from batchformer.lab.models.weights import file_hash
from batchformer.lab.recipes.sweep import WORDS, Sweep, changed_settings
from batchformer.lab.runs.compare import folders_of, lock_runs, train_all
from batchformer.lab.runs.folder import (
    OF_NO_EFFECT,
    RECORD,
    anything_trained,
    completed,
    differences,
    has_result,
    read_json,
    recipe_from_json,
    recipe_to_json,
    recorded,
    with_absolute_paths,
    write_json,
)
from batchformer.lab.runs.run import Run
from batchformer.plug.files import write_atomically

# Runs that were trained already under another name: copied, not trained again.

#: In ``RUNS/SWEEP``: how the runs of a sweep belong together.
DESCRIPTION = "sweep.json"


def reuse_runs(runs: Sequence[Run], base: str, root: Path) -> None:
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
            words, name = recipe_to_json(one.recipe), source.relative_to(root).as_posix()
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
    wanted = {"recipe": recipe_to_json(one.recipe), "trained": recipe_to_json(one.settled())}
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


# A sweep's runs: every level and arm, seed by seed.
#
# They lie in ``RUNS/SWEEP/LEVEL/ARM/seedN`` and are ordinary runs; ``RUNS/SWEEP/sweep.json`` says
# how they belong together, for ``batchformer report``.
#
# What was trained already under another name (``batchformer compare`` of the base, another sweep of
# it) is not trained again: the level that equals the base, and a baseline that no level changes.


def run_sweep(
    sweep: Sweep,
    base: Recipe,
    arms: Sequence[str],
    levels: Sequence[str],
    seeds: Sequence[int],
    *,
    root: Path,
    device: torch.device,
    quiet: bool = False,
    together: int = 1,
) -> Iterator[Path]:
    """Train every level with every seed, seed by seed; finished runs are kept, others go on.

    A run that is not begun is taken over where the same was trained under another name.
    A run that diverges is reported and left; the others go on.

    Args:
        sweep: what is varied.
        base: its recipe, with what a person changed of it.
        arms: beside the baseline.
        levels: some or all of the sweep's.
        seeds: each pairs the runs of all levels and arms.
        root: folder of all runs.
        device: to train on.
        quiet: no progress.
        together: runs that train side by side, of whatever level.
    """
    base = with_absolute_paths(base)
    recipes = {level: sweep.recipe(level, base) for level, _ in sweep.cells(arms, levels)}
    runs = [
        Run.below(root, recipes[level], arm, seed, device)
        for seed in seeds
        for level, arm in sweep.cells(arms, levels)
    ]
    for one in runs:
        one.require_sources()
    with lock_runs(runs):
        on_rank_zero(lambda: _describe(sweep, base, root / sweep.name / DESCRIPTION))
        on_rank_zero(lambda: reuse_runs(runs, base.name, root))
        yield from folders_of(train_all(runs, quiet, together))


def _describe(sweep: Sweep, base: Recipe, path: Path) -> None:
    """Write how the runs belong together; refuse a folder begun with another base."""
    # Jobs in a queue have trained nothing yet, and keep the base that they were submitted with.
    begun = anything_trained(path.parent) or (path.parent / RECORD).exists()
    if path.exists() and begun:
        before = with_absolute_paths(recipe_from_json(read_json(path, "base")["base"]))
        changed = [
            f"{key} was {old}, is {new}"
            for key, (old, new) in changed_settings(before, base).items()
            if key not in OF_NO_EFFECT
        ]
        if changed:
            raise ValueError(
                f"{path.parent} was begun with other settings: {'; '.join(changed)}. Levels are "
                f"compared with one another, so give --runs another folder, or remove that one."
            )
    content = {
        "name": sweep.name,
        "factor": sweep.factor,
        "table": sweep.table_of(base),
        "reference": sweep.reference,
        "baseline": sweep.baseline,
        "levels": {name: sweep.paper(name, base) for name in sweep.level_names},
        "base": recipe_to_json(base),
    }
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
