"""What smoke tests of recipes share: noise on disk, smaller networks, and two updates."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.sets.images import class_counts
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.base import Task

CPU = torch.device("cpu")
#: Networks that are trained in place of larger ones of their kind; test_networks.py builds those.
#: timm has those that begin with "test" for tests: a ResNet of four stages, a ViT of six blocks.
SMALLER = {
    "resnet18_small": "resnet32",
    **{f"resnet{depth}": "test_resnet" for depth in (18, 50, 101, 152)},
    **{f"resnet{depth}.tv_in1k": "test_resnet" for depth in (18, 50, 101, 152)},
    "ride_resnet50": "ride_resnet10",
    "ride_resnext50": "ride_resnet10",
    **{f"deit_{size}_patch16_224": "test_vit" for size in ("tiny", "small", "base")},
    **{f"vit_{size}_patch16_224": "test_vit" for size in ("tiny", "small")},
}


def tiny(
    recipe: Recipe, data: Mapping[str, Any], train: Mapping[str, Any], weights: str = ""
) -> Recipe:
    """The recipe with other data and length, and a smaller network."""
    smaller = SMALLER.get(recipe.model, recipe.model)
    at = tuple(re.sub(r"^blocks\.\d+$", "blocks.4", place) for place in recipe.module.at)
    module = recipe.module if smaller == recipe.model else dataclasses.replace(recipe.module, at=at)
    return recipe.changed(
        data=data,
        train={"workers": 0, "figures": False, **train},
        model=smaller,
        module=module,
        weights=weights,
    )


def save_noise(path: Path, stream: np.random.Generator, height: int = 36, width: int = 36) -> None:
    """An image file of noise, in folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(stream.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)


def save_tail(path: Path, classes: int, largest: int, ratios: tuple[int, ...] = (100,)) -> None:
    """The .npz of a long tail of noise, as large as these ratios need; a third is tested."""
    sizes = np.max([class_counts(largest, classes, ratio) for ratio in ratios], axis=0)
    labels, stream = np.repeat(np.arange(classes), sizes), np.random.default_rng(0)
    tested = np.arange(0, classes, 3)
    np.savez(
        path,
        x_train=stream.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8),
        y_train=labels,
        rank_in_class=np.concatenate([np.arange(n) for n in sizes]),
        x_test=stream.integers(0, 256, (len(tested), 32, 32, 3), dtype=np.uint8),
        y_test=tested,
        classes=np.array([f"class {c}" for c in range(classes)]),
    )


def two_updates(
    recipe: Recipe,
    task: Task,
    method: Method,
    look: Callable[[int, dict[str, Any], Mapping[str, float]], None] = lambda *_: None,
    end: Callable[[Any], None] = lambda feed: None,
    optimizer_step: OptimizerStep | None = None,
) -> dict[str, Tensor]:
    """Train, with finite losses; gives the parameters from before.

    `look` is shown the step, its batch and its losses, and `end` the feed after both.
    """
    optimizer_step = optimizer_step or OptimizerStep(recipe.train, CPU)
    optimizers = method.optimizers(recipe.optim)
    before = {name: value.detach().clone() for name, value in method.named_parameters()}
    feed = task.feed(recipe.train, seed=0)
    method.begin_training(2)
    method.train()
    torch.manual_seed(0)  # of dropout: not what tests before have left
    try:
        for step in range(2):
            method.begin_epoch(step)
            batch = feed.batch(step)
            losses = method.update(batch, optimizers, optimizer_step)
            method.after_update()
            assert "loss" in losses
            assert all(math.isfinite(value) for value in losses.values()), losses
            look(step, batch, losses)
        end(feed)
    finally:
        close(feed)
    return before


def part_names(method: Method) -> set[str]:
    """Parts of the method that have parameters."""
    return {name.removeprefix("inner.").split(".")[0] for name, _ in method.named_parameters()}


def moved_parts(before: Mapping[str, Tensor], method: Method) -> set[str]:
    """Parts of the method with a parameter that is not what it was."""
    moved = [k for k, v in method.named_parameters() if not torch.equal(before[k], v)]
    return {name.removeprefix("inner.").split(".")[0] for name in moved}


def scores(method: Method, task: Task, recipe: Recipe) -> dict[str, float]:
    """What an evaluation finds, without warnings; all of it is finite."""
    method.before_evaluation()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = task.evaluate(method.eval(), OptimizerStep(recipe.train, CPU)).metrics
    assert all(math.isfinite(value) for value in found.values()), found
    return found
