"""What smoke tests of recipes share: smaller networks, two updates and their scores."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
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
    return {name.split(".")[0] for name, _ in method.named_parameters()}


def moved_parts(before: Mapping[str, Tensor], method: Method) -> set[str]:
    """Parts of the method with a parameter that is not what it was."""
    moved = [k for k, v in method.named_parameters() if not torch.equal(before[k], v)]
    return {name.split(".")[0] for name in moved}


def scores(method: Method, task: Task, recipe: Recipe) -> dict[str, float]:
    """What an evaluation finds, without warnings; all of it is finite."""
    method.before_evaluation()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = task.evaluate(method.eval(), OptimizerStep(recipe.train, CPU)).metrics
    assert all(math.isfinite(value) for value in found.values()), found
    return found
