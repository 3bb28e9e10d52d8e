"""Which settings the short help of a recipe leaves out; nothing here needs torch.

They have no effect on the recipe as it is, or need several ranks. They can still be given, and
``--help-all`` shows them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from batchformer.lab.config.data import (
    WITH_VAL_LIST,
    ContrastConfig,
    DataConfig,
    DomainConfig,
    LongTailConfig,
    PairConfig,
)
from batchformer.lab.config.methods import COMMON, MethodEntry, find_method
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.settings import LatePenalty, MethodConfig, Network, ValleyAverage

#: Settings of the optimizer that only these read.
_OPTIMIZERS = {
    "momentum": ("sgd", "lars"),
    "nesterov": ("sgd",),
    "betas": ("adam", "adamw"),
    "trust": ("lars",),
}
#: Settings of the schedule that only these shapes read.
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
    """Names such as ``data.root``; a setting that the recipe sets itself is never hidden.

    >>> from batchformer.lab.recipes import find_recipe
    >>> hidden = hidden_settings(find_recipe("demo"))
    >>> "hyper.tau" in hidden, "hyper.cutmix" in hidden, "data.ratio" in hidden
    (True, False, False)
    """
    return {name for name in _idle(recipe) if not _is_set(recipe, name)}


def _is_set(recipe: Recipe, setting: str) -> bool:
    """Whether a setting has another value than its default."""
    group, _, name = setting.rpartition(".")
    settings: Any = getattr(recipe, group) if group else recipe
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    return name in defaults and getattr(settings, name) != defaults[name]


def _idle(recipe: Recipe) -> set[str]:
    entry = find_method(recipe.method)
    idle = {f"data.{name}" for name in _of_data(recipe.data)}
    read = {"teacher", "data.views", "data.adapt", "data.mask", "data.meta_batch", "data.meta_from"}
    idle |= read - set(entry.reads) - ({"data.views"} if recipe.task == "contrastive" else set())
    idle |= {f"hyper.{name}" for name in _of_methods(recipe, entry)}
    if entry.batchformer != "trains":
        idle |= {f"module.{field.name}" for field in dataclasses.fields(recipe.module)}
    if not entry.class_context:
        idle.add("module.context")
    if recipe.module.context == "none":
        idle |= {"module.context_momentum", "module.context_weight"}
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
    if not getattr(recipe.data, "of_files", True):
        idle |= set(_IMAGE_FILES)
    return idle | set(_RANKS)


def _of_methods(recipe: Recipe, entry: MethodEntry) -> set[str]:
    """Settings of other methods, and of what this recipe has not."""
    read = {*entry.settings, *COMMON}
    if recipe.task != "domains":
        read.discard(ValleyAverage)
    if not getattr(recipe.data, "of_files", True):
        read.discard(Network)
    known = {field.name for group in read for field in dataclasses.fields(group)}
    return {field.name for field in dataclasses.fields(MethodConfig)} - known


def _of_data(data: DataConfig) -> set[str]:
    """Settings of other data sets of the same family."""
    if isinstance(data, ContrastConfig):
        return _of_data(data.images())
    if isinstance(data, DomainConfig):
        return set() if data.of_files else {"root", "lists", "memory"}
    if isinstance(data, PairConfig):
        return set() if data.name == "table" else {"table"}
    if not isinstance(data, LongTailConfig):
        return set()
    idle = {"ratio", "profile"} if data.of_files else {"train_list", "test_list", "per_class"}
    if not data.of_files:
        idle.add("size")
    if data.name not in WITH_VAL_LIST:
        idle |= {"scored_on", "meta_from"}
    if data.name == "digits":
        idle |= {"root", "profile", "augment"}
    return idle
