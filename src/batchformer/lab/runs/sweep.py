"""Trains a sweep: every level and arm, seed by seed.

The runs lie in ``RUNS/SWEEP/LEVEL/ARM/seedN`` and are ordinary runs. ``RUNS/SWEEP/sweep.json`` says
how they belong together, for ``batchformer report``.

A run that was already trained under another name, by ``batchformer compare`` of the base recipe or
by another sweep of it, is copied and not trained again. This holds for the level that equals the
base, and for a baseline that no level changes. Jobs of a launcher train all runs and copy none.
"""

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

from batchformer.insight.files import write_atomically
from batchformer.lab.config.recipe import DESCRIPTION, Recipe, effective_changes
from batchformer.lab.engine.distributed.rank_zero import by_rank_zero
from batchformer.lab.engine.log import read_records
from batchformer.lab.recipes.sweeps import Sweep
from batchformer.lab.runs.compare import CPU, folders_of, lock_runs, train_all
from batchformer.lab.runs.folder import (
    RECORD,
    anything_trained,
    has_result,
    read_config,
    read_json,
    recipe_to_json,
    with_absolute_paths,
    write_json,
)
from batchformer.lab.runs.run import Run

#: File in ``RUNS/SWEEP`` that says how the runs of a sweep belong together.
SWEEP_FILE = "sweep.json"


def runs_of_sweep(
    sweep: Sweep,
    base: Recipe,
    arms: Sequence[str],
    levels: Sequence[str],
    seeds: Sequence[int],
    root: Path,
    device: torch.device = CPU,
) -> list[Run]:
    """Every level and arm with every seed, seed by seed."""
    cells = sweep.cells(arms, levels)
    recipes = {level: sweep.recipe(level, base) for level, _ in cells}
    return [
        Run.below(root, recipes[level], arm, seed, device) for seed in seeds for level, arm in cells
    ]


def run_sweep(
    sweep: Sweep,
    base: Recipe,
    runs: Sequence[Run],
    root: Path,
    quiet: bool = False,
    together: int = 1,
) -> Iterator[Path]:
    """Train the runs of a sweep and yield the folder of each that finished.

    A run that has not begun is copied if the same was trained under another name. A run that
    diverges is reported; the others continue.
    """
    for one in runs:
        one.require_sources()
    with lock_runs(runs):
        describe(sweep, base, root)
        reuse_runs(runs, base.name, root)
        yield from folders_of(train_all(runs, quiet, together))


@by_rank_zero
def describe(sweep: Sweep, base: Recipe, root: Path) -> None:
    """Write how the runs belong together; refuse a folder that has another base recipe."""
    base, path = with_absolute_paths(base), root / sweep.name / SWEEP_FILE
    # Queued jobs have trained nothing yet, but will train the base that they were submitted with.
    begun = anything_trained(path.parent) or (path.parent / RECORD).exists()
    if path.exists() and begun:
        changed = effective_changes(read_json(path, "base")["base"], recipe_to_json(base))
        if changed:
            raise ValueError(
                f"{path.parent} was begun with other settings: {'; '.join(changed)}. Levels are "
                "compared with one another, so give --runs another folder, or remove that one."
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
    write_json(path, content)


@by_rank_zero
def reuse_runs(runs: Sequence[Run], base: str, root: Path) -> None:
    """Copy runs that were trained under another name, and say which on stderr."""
    reused = []
    for one in runs:
        if one.folder.exists():
            continue
        source = next((path for path in _candidates(one, base, root) if _same_run(path, one)), None)
        if source is not None:
            recipe, name = recipe_to_json(one.recipe), source.relative_to(root).as_posix()
            copy_run(source, one.folder, {key: recipe[key] for key in DESCRIPTION}, name)
            reused.append(name)
    if reused:
        count = "1 run was" if len(reused) == 1 else f"{len(reused)} runs were"
        print(f"{count} trained before and reused: {', '.join(reused)}", file=sys.stderr)


def _candidates(one: Run, base: str, root: Path) -> Iterator[Path]:
    """Folders that may hold the same run: in a comparison of the base, then in sweeps."""
    place = f"{one.arm}/seed{one.seed}"
    yield root / base / place
    for description in sorted(root.glob(f"*/{SWEEP_FILE}")):
        yield from sorted(description.parent.glob(f"*/{place}"))


def _same_run(folder: Path, one: Run) -> bool:
    """Whether a folder holds this run under any name, finished and intact."""
    try:
        config = read_config(folder) or {}
    except (OSError, ValueError):
        return False
    if (config.get("arm"), config.get("seed")) != (one.arm, one.seed):
        return False
    wanted = {"recipe": recipe_to_json(one.recipe), "trained": recipe_to_json(one.settled())}
    same = not any(effective_changes(config.get(key, {}), plain) for key, plain in wanted.items())
    # The slow checks come last: they unpack files and read data.
    return (
        same
        and is_intact(folder)
        and all(config.get(key) == value for key, value in _data_and_weights(one).items())
    )


def _data_and_weights(one: Run) -> dict[str, Any]:
    """What ``config.json`` says of a run's data and of its initial weights."""
    task = one.task
    found = {
        "data": task.facts(),
        "draws": task.draws() or None,
        "weights": one.weights_record(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def is_intact(folder: Path) -> bool:
    """Whether a run has finished, and every file that a report needs is as it was written."""
    try:
        trainings = [path.parent for path in folder.rglob("config.json")]  # the run and its parts
        return read_config(folder) is not None and all(map(_has_intact_files, trainings))
    except (OSError, ValueError):
        return False


def _has_intact_files(folder: Path) -> bool:
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


def copy_run(source: Path, folder: Path, description: Mapping[str, Any], origin: str) -> None:
    """Copy a finished run to another name: all of it, or nothing.

    ``taken_from`` in the copy's configuration says where it was trained, and its provenance stays.
    Checkpoints are hard links where the file system has them, as nobody changes their content.

    Args:
        source: folder of the run.
        folder: of the copy, which does not exist yet.
        description: the copy's values for the fields that describe a recipe.
        origin: what ``taken_from`` says, unless the source is a copy itself.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    try:
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                _copy_file(path, partial / path.relative_to(source))
        for path in partial.rglob("config.json"):
            config = {"taken_from": origin, **read_json(path, "trained")}
            renamed = {part: {**config[part], **description} for part in ("recipe", "trained")}
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
    except OSError:  # a file system without hard links, or a file of another user
        shutil.copyfile(path, target)
