"""Measures the network of a run for figures: at the end of the run, or later from its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from batchformer.insight.images import LabelledImages
from batchformer.insight.look import (
    BATCH,
    MEASURED,
    Arrays,
    CountedImages,
    Tell,
    batches_of,
    look,
    look_cam,
    measure,
    measured_rows,
    nearly_equal,
)
from batchformer.insight.record import FILE, save
from batchformer.insight.relations import Relations
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.log import Progress
from batchformer.lab.engine.method import Method
from batchformer.lab.models.norms import recalibrate_norms
from batchformer.lab.runs.build import build_untrained
from batchformer.lab.runs.folder import recipe_from_json
from batchformer.lab.tasks.base import Task


def insight_of(folder: Path, device: torch.device, root: str | None = None) -> Path | None:
    """Measure the trained network of a run, and write the arrays into its folder.

    The arrays are those that the end of the run would have written.

    Returns:
        The file. None if there is nothing to measure, or if measuring failed; stderr says why.
    """
    from batchformer.lab.runs.load_run import restore  # late: at its end a run needs no restoring

    method, task, config = restore(folder, device, root)
    recipe, seed = recipe_from_json(config["trained"]), config["seed"]
    images = figure_images(task, method, recipe)
    if images is None:
        return None
    epoch = _last_epoch(task, recipe, seed)
    method.begin_epoch(epoch)  # some losses change with the epoch
    untrained = partial(build_untrained, recipe, seed, task, device, epoch)
    with Progress(f"{folder}: figures", 1) as bar:
        arrays = partial(insight_arrays, method, images, seed, untrained, bar.measured)
        saved = save_insight(arrays, folder, str(folder))
    return folder / FILE if saved else None


def cam_of(folder: Path, device: torch.device, layer: str, root: str | None = None) -> Arrays:
    """Grad-CAM of a run's trained network at a layer; nothing is written."""
    from batchformer.lab.runs.load_run import restore

    method, task, config = restore(folder, device, root)
    images = figure_images(task, method, recipe_from_json(config["trained"]))
    relations = method.relations()
    if images is None or relations is None:
        raise ValueError(f"{folder}: there is no Grad-CAM of this recipe's method or images.")
    return look_cam(relations, images, _network_of(method), layer)


def figure_images(task: Task, method: Method, recipe: Recipe) -> LabelledImages | None:
    """Test images to measure a method on; None if the task or the method has none for figures."""
    images_of = getattr(task, "figure_images", None)
    if images_of is None or method.relations() is None:
        return None
    images: LabelledImages = images_of(recipe.train.workers)
    return images


def insight_arrays(
    method: Method,
    images: LabelledImages,
    seed: int,
    untrained: Callable[[], Method],
    tell: Tell,
) -> Arrays | None:
    """The arrays of a method for figures; None if it has none.

    Args:
        untrained: builds the same method with random weights, a control for what BatchFormer does.
    """
    relations = method.relations()
    if relations is None:
        return None
    found = look(relations, images, network=_network_of(method), seed=seed, tell=tell)
    control = untrained().relations() if relations.encoder is not None else None
    if control is not None:
        found |= look_untrained(control, images, seed=seed, tell=tell)
    return found


def save_insight(measure_arrays: Callable[[], Arrays | None], folder: Path, title: str) -> bool:
    """Measure and write the arrays. A failure costs the figures, never the run.

    Returns:
        Whether they were written. Where that failed, one line on stderr says why.
    """
    try:
        arrays = measure_arrays()
        if arrays is not None:
            save(folder / FILE, arrays)
    except Exception as error:  # whatever it is, the result of the run is worth more
        words = f"{title}: no figures of relations: {type(error).__name__}: {error}"
        print(words.splitlines()[0], file=sys.stderr, flush=True)
        return False
    return arrays is not None


def look_untrained(
    relations: Relations, images: LabelledImages, *, seed: int, tell: Tell
) -> Arrays:
    """Gradients on pooled features and accuracy of an untrained network, on the same batches.

    It is a control. Where a method weighs classes, the loss of a rare class is larger from the
    start, and so are its gradients on other samples. Only what an untrained network does not show
    was learned.

    Its batch normalisation takes the statistics of these images: with its initial ones, features
    would grow from layer to layer as they never do in training.

    Args:
        relations: of a network with random weights and an encoder; the network is changed.

    Returns:
        The arrays of :mod:`batchformer.insight.record` that have "untrained" in their names.
    """
    rows = measured_rows(images.labels, MEASURED, seed)
    with torch.no_grad():
        _measure_norms(relations, images, rows)
        counted = CountedImages(images, tell, batches_of(len(rows), BATCH))
        found = measure(relations, counted, rows, BATCH, steps=0)
    return {
        "gradient_untrained_abs": found["gradient_abs"],
        "gradient_untrained_l2": found["gradient_l2"],
        "untrained_correct": np.array(found["reliability_correct"][0].sum()),
    }


def _measure_norms(relations: Relations, images: LabelledImages, rows: Tensor) -> None:
    module: nn.Module = relations.module
    module.train()
    with recalibrate_norms(module) as norms:
        module.eval()
        for norm in norms:
            norm.train()
        for x in images.batches(rows, nearly_equal(len(rows), BATCH)) if norms else ():
            relations.features(x)
    module.eval()


def _network_of(method: Method) -> nn.Module:
    """The part of a method that Grad-CAM looks into."""
    network = getattr(method, "network", None)
    return network if isinstance(network, nn.Module) else method


def _last_epoch(task: Task, recipe: Recipe, seed: int) -> int:
    feed = task.feed(recipe.train, seed)
    try:
        updates = recipe.train.in_updates(feed.per_epoch).updates
        return max(0, updates - 1) // feed.per_epoch
    finally:
        close(feed)
