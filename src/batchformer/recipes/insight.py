"""What is to be seen of a run that was finished before, or elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from batchformer.data.feed import close
from batchformer.engine.log import Progress
from batchformer.engine.method import Method
from batchformer.insight.keep import keep, seen_of
from batchformer.insight.record import FILE
from batchformer.recipes.plain import from_plain
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.run import restore
from batchformer.tasks.load import Task


def insight_of(folder: Path, device: torch.device, root: str | None = None) -> Path | None:
    """Look at the trained network of a run's folder, and keep it there, as its end would have.

    Args:
        folder: of one training: that of a run, or of one of its targets.
        device: where the network is looked at.
        root: where the data lies now; None: where it lay when the run was trained.

    Returns:
        The file, or None where there is nothing to see, or a line on stderr says why not.

    Raises:
        FileNotFoundError: it is no run, or it has no checkpoint.
    """
    method, task, config = restore(folder, device, root)
    shown = getattr(task, "shown", None)
    if shown is None or method.relations() is None:
        return None
    recipe = from_plain(config["trained"])
    _as_at_the_end(method, task, recipe, config["seed"])
    with Progress(f"{folder}: figures", 1) as bar:
        images = shown(recipe.train.workers)
        look = partial(seen_of, method, images, config["seed"], bar.measured)
        kept = keep(look, folder, str(folder))
    return folder / FILE if kept else None


def _as_at_the_end(method: Method, task: Task, recipe: Recipe, seed: int) -> None:
    """Losses that change with the epoch are those of the last."""
    feed = task.feed(recipe.train, seed)
    try:
        updates = recipe.train.in_updates(feed.per_epoch).updates
        method.begin_epoch(max(0, updates - 1) // feed.per_epoch)
    finally:
        close(feed)
