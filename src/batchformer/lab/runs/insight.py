"""What is to be seen of a run that was finished before, or elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from batchformer.insight.look import Arrays, look_cam
from batchformer.insight.record import FILE
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.log import Progress
from batchformer.lab.runs.build import build_untrained
from batchformer.lab.runs.folder import recipe_from_json
from batchformer.lab.runs.insight_arrays import keep, network_of, seen_of
from batchformer.lab.runs.run import restore
from batchformer.lab.tasks.load import Task


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
    recipe = recipe_from_json(config["trained"])
    seed = config["seed"]
    epoch = _last_epoch(task, recipe, seed)
    method.begin_epoch(epoch)  # losses that change with the epoch are those of the last
    untrained = partial(build_untrained, recipe, seed, task, device, epoch)
    with Progress(f"{folder}: figures", 1) as bar:
        images = shown(recipe.train.workers)
        look = partial(seen_of, method, images, seed, untrained, bar.measured)
        kept = keep(look, folder, str(folder))
    return folder / FILE if kept else None


def cam_of(folder: Path, device: torch.device, layer: str) -> Arrays:
    """Grad-CAM of a run's trained network at a layer of one's choice; nothing is kept.

    Args:
        folder: of one training.
        device: where the network is looked at.
        layer: its name in the network, or ``released`` for that of the paper's code.

    Raises:
        FileNotFoundError: it is no run, or it has no checkpoint.
        ValueError: the network has no such layer, or nothing is to be seen of it.
    """
    method, task, config = restore(folder, device)
    shown, relations = getattr(task, "shown", None), method.relations()
    if shown is None or relations is None:
        raise ValueError(f"{folder}: there is no Grad-CAM of this recipe's method or images.")
    images = shown(recipe_from_json(config["trained"]).train.workers)
    return look_cam(relations, images, network_of(method), layer)


def _last_epoch(task: Task, recipe: Recipe, seed: int) -> int:
    feed = task.feed(recipe.train, seed)
    try:
        updates = recipe.train.in_updates(feed.per_epoch).updates
        return max(0, updates - 1) // feed.per_epoch
    finally:
        close(feed)
