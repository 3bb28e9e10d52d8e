"""A sweep's runs: every level and arm, seed by seed.

They lie in ``RUNS/SWEEP/LEVEL/ARM/seedN`` and are ordinary runs; ``RUNS/SWEEP/sweep.json`` says how
they belong together, for ``batchformer report``.

What was trained already under another name (``batchformer compare`` of the base, another sweep of
it) is not trained again: the level that equals the base, and a baseline that no level changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import write_atomically
from batchformer.lab.engine.distributed.rank_zero import first_says
from batchformer.lab.recipes.sweep import Sweep, changed_settings
from batchformer.lab.runs.compare import folders_of, train_all
from batchformer.lab.runs.folder import OF_NO_EFFECT, RECORD, anything_trained, read_json
from batchformer.lab.runs.held import held
from batchformer.lab.runs.plain import as_plain, from_plain, with_absolute_paths
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.taking_over import DESCRIPTION, take_over


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
    with held(runs):
        first_says(lambda: _describe(sweep, base, root / sweep.name / DESCRIPTION))
        first_says(lambda: take_over(runs, base.name, root))
        yield from folders_of(train_all(runs, quiet, together))


def _describe(sweep: Sweep, base: Recipe, path: Path) -> None:
    """Write how the runs belong together; refuse a folder begun with another base."""
    # Jobs in a queue have trained nothing yet, and keep the base that they were submitted with.
    begun = anything_trained(path.parent) or (path.parent / RECORD).exists()
    if path.exists() and begun:
        before = with_absolute_paths(from_plain(read_json(path, "base")["base"]))
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
        "base": as_plain(base),
    }
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
