"""Settings that have no effect on a recipe.

The short help leaves them out, and the command line refuses those that a user sets.
Nothing here needs torch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from batchformer.lab.config.methods import COMMON, METHODS, MethodEntry, find_method
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.settings import LatePenalty, MethodConfig, Network, ValleyAverage

#: Settings of the optimizer that only these optimizers read.
_OPTIMIZERS = {
    "momentum": ("sgd", "lars"),
    "nesterov": ("sgd",),
    "betas": ("adam", "adamw"),
    "trust": ("lars",),
}
#: Settings of the schedule that only these shapes of it read.
_SHAPES = {
    "floor": ("cosine",),
    "milestones": ("multistep",),
    "gamma": ("multistep",),
    "rate": ("power",),
    "power": ("power",),
}
#: Settings of training on several ranks.
_RANKS = ("train.parallel", "train.sync_norm", "module.exchange")
#: Settings of image files and of networks that are trained on them.
_IMAGE_FILES = ("stride", "train.workers", "train.damaged")


def hidden_settings(recipe: Recipe) -> set[str]:
    """Settings, such as ``data.root``, that have no effect on a recipe or need several ranks.

    A setting that the recipe sets itself is never hidden.

    >>> from batchformer.lab.recipes import find_recipe
    >>> hidden = hidden_settings(find_recipe("demo"))
    >>> "hyper.tau" in hidden, "hyper.cutmix" in hidden, "data.ratio" in hidden
    (True, False, False)
    """
    return {name for name in _idle(recipe) if not _is_set(recipe, name)}


def unread_settings(recipe: Recipe) -> set[str]:
    """Settings of data, method, optimizer and schedule that are set, but that no arm reads.

    Settings that a network may read, or that only change the speed, are left out.

    >>> from batchformer.lab.recipes import find_recipe
    >>> unread_settings(find_recipe("demo").changed(hyper={"smoothing": 0.1, "cutmix": 1.0}))
    {'hyper.smoothing'}
    """
    groups = ("data.", "hyper.", "optim.", "schedule.")
    read = {f"hyper.{field.name}" for field in dataclasses.fields(Network)}
    read |= {"data.size", "data.memory", "hyper.experts", "hyper.scale"}
    idle = {setting for setting in _idle(recipe) if setting.startswith(groups)} - read
    return {setting for setting in idle if _is_set(recipe, setting)}


def _is_set(recipe: Recipe, setting: str) -> bool:
    """Whether a setting differs from its default."""
    group, _, name = setting.rpartition(".")
    settings: Any = getattr(recipe, group) if group else recipe
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    return name in defaults and getattr(settings, name) != defaults[name]


def _idle(recipe: Recipe) -> set[str]:
    entry = find_method(recipe.method)
    idle = {f"data.{name}" for name in recipe.data.idle()}
    read = {setting for known in METHODS.values() for setting in known.reads}
    idle |= read - set(entry.reads) - ({"data.views"} if recipe.task == "contrastive" else set())
    idle |= {f"hyper.{name}" for name in _of_methods(recipe, entry)}
    if entry.batchformer != "trains":
        idle |= {f"module.{field.name}" for field in dataclasses.fields(recipe.module)}
    if not entry.sample_loss:
        idle |= {"module.context", "module.views", "module.mixed_labels"}
    if not entry.inside:
        idle |= {"module.at", "module.encoder"}
    if len(recipe.module.at) < 2:
        idle.add("module.share")
    if recipe.module.context == "none":
        idle |= {"module.context_momentum", "module.context_weight"}
    if recipe.module.mixed_labels == "own":
        idle.add("module.label_share")
    if recipe.module.layers == 1:
        idle.add("module.copy_layers")
    idle |= {f"optim.{name}" for name, of in _OPTIMIZERS.items() if recipe.optim.name not in of}
    idle |= {f"schedule.{name}" for name, of in _SHAPES.items() if recipe.schedule.kind not in of}
    if not recipe.schedule.warmup:
        idle |= {"schedule.warmup_from", "schedule.warmup_overshoot"}
    if LatePenalty not in entry.settings:
        idle.add("schedule.restart")
    if not recipe.train.epochs:
        idle.add("train.eval_epochs")
    if not recipe.data.of_files:
        idle |= set(_IMAGE_FILES)
    return idle | set(_RANKS)


def _of_methods(recipe: Recipe, entry: MethodEntry) -> set[str]:
    """Settings of ``hyper`` for other methods, tasks or kinds of data than this recipe's."""
    read = {*entry.settings, *COMMON}
    if recipe.task != "domains":
        read.discard(ValleyAverage)
    if not recipe.data.of_files:
        read.discard(Network)
    known = {field.name for group in read for field in dataclasses.fields(group)}
    return {field.name for field in dataclasses.fields(MethodConfig)} - known
