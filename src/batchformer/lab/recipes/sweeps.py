"""Sweeps: one recipe with one setting at several levels; nothing here needs torch.

Sweeps on ImageNet-LT are the paper's ablations. Those on CIFAR-100-LT are ours, apart from PaCo's
loss, and train in minutes. Those of MoCo are scored by nearest neighbours, as MoCo itself is.

Stacked layers start from weights of their own. The released code, and so presumably the paper's
table of layers, starts them as copies of one: ``--module.copy-layers``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from batchformer.lab.config.arms import BASELINE
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Change, Recipe, with_settings
from batchformer.lab.data.sets.image_layouts import ANNOTATED
from batchformer.lab.recipes.cifar_lt import without_paco_loss
from batchformer.lab.recipes.paper import numbers_for
from batchformer.lab.recipes.shared import IMAGES

UNCHANGED = with_settings()


@dataclass(frozen=True, kw_only=True)
class Level:
    """One value of what a sweep varies."""

    name: str  # in tables, and the name of the folder
    # Makes the level's recipe from the base; by default the base itself
    change: Change = UNCHANGED
    row: str = ""  # another recipe that has the same numbers of the paper, if there is one


@dataclass(frozen=True)
class Sweep:
    """A base recipe and the levels of one factor."""

    name: str  # what the command line calls it
    base: str  # name of the recipe that is varied
    factor: str  # what is varied, in words
    levels: tuple[Level, ...]  # in the order they are shown
    reference: str  # the level that the others are compared with
    table: str = NOT_IN_THE_PAPER
    # ``"once"`` if levels change nothing without BatchFormer, else ``"each"``
    baseline: Literal["once", "each"] = field(default="once", kw_only=True)

    def __post_init__(self) -> None:
        if self.reference not in self.level_names:
            raise ValueError(f"{self.name} has no level {self.reference!r} to compare with.")

    @property
    def level_names(self) -> tuple[str, ...]:
        return tuple(level.name for level in self.levels)

    def base_recipe(self) -> Recipe:
        """The recipe that is varied."""
        from batchformer.lab.recipes import find_recipe

        return find_recipe(self.base)

    def level(self, name: str) -> Level:
        """The level of this name; the error for an unknown one lists the levels."""
        for level in self.levels:
            if level.name == name:
                return level
        known = ", ".join(self.level_names)
        raise ValueError(f"{self.name} has no level {name!r}; its levels are {known}.")

    def of_the_paper(self, base: Recipe) -> bool:
        """Whether the paper's numbers belong to this base, which the user may have changed."""
        return base.row == self.base_recipe().row

    def table_of(self, base: Recipe) -> str:
        """The paper's table that this base belongs to, or NOT_IN_THE_PAPER."""
        return self.table if self.of_the_paper(base) else NOT_IN_THE_PAPER

    def paper(self, name: str, base: Recipe) -> dict[str, dict[str, float]]:
        """The paper's numbers of a level, arm by arm; the reference has the base's as well."""
        if not self.of_the_paper(base):
            return {}
        own = numbers_for(self.level(name).row or f"{self.name}/{name}")
        shared = base.paper if name == self.reference else {}
        return {arm: dict(numbers) for arm, numbers in {**shared, **own}.items()}

    def recipe(self, name: str, base: Recipe) -> Recipe:
        """The recipe of a level."""
        return (
            self.level(name)
            .change(base)
            .changed(
                name=f"{self.name}/{name}",
                summary=f"{base.summary}; {self.factor}: {name}",
                table=self.table_of(base),
                paper=self.paper(name, base),
            )
        )

    def cells(self, arms: Sequence[str], levels: Sequence[str]) -> list[tuple[str, str]]:
        """Level and arm of everything that is trained with one seed, baselines first.

        A baseline that does not depend on the level is trained at the reference level alone.
        """
        shared = [self.reference] if self.baseline == "once" else list(levels)
        others = [arm for arm in arms if arm != BASELINE]
        return [(level, BASELINE) for level in shared] + [
            (v, arm) for v in levels for arm in others
        ]


# Changes that levels make to a recipe: one setting, and those that follow from it


def training_images(recipe: Recipe) -> int:
    """Images of an epoch, without reading the data."""
    data: Any = recipe.data
    if not data.long_tailed:
        raise ValueError(
            "A sweep of batch sizes keeps the number of epochs, which is known for long-tailed "
            "data alone. Choose a sweep of another setting."
        )
    fewer = data.per_class or data.min_images or data.max_images
    if data.name in ANNOTATED and not fewer:
        return ANNOTATED[data.name].images  # true of any lists: their sizes are checked
    if fewer or (data.name, data.ratio) not in IMAGES or data.profile != "exponential":
        raise ValueError(
            "A sweep of batch sizes keeps the number of epochs, and the training images of "
            f"{data.name} with ratio {data.ratio:g}, {data.profile}, are not known here. Leave "
            "--data as in the recipe."
        )
    return IMAGES[data.name, data.ratio]


def with_batch_size(size: int) -> Change:
    """Batches of ``size`` samples, at a proportional rate and for the same number of epochs."""

    def change(recipe: Recipe) -> Recipe:
        images = training_images(recipe)
        train, schedule, before = recipe.train, recipe.schedule, recipe.train.batch_size

        def updates(batch: int) -> int:
            return images // batch if train.drop_last else -(-images // batch)

        longer = Fraction(updates(size), updates(before))
        by_update = {
            "warmup": round(schedule.warmup * longer),
            "warmup_overshoot": round(schedule.warmup_overshoot * longer),
            "milestones": tuple(round(at * longer) for at in schedule.milestones),
            "ahead": round(schedule.ahead * longer),
        }
        return recipe.changed(
            optim={"lr": recipe.optim.lr * size / before},
            schedule=by_update if schedule.per == "update" else {},
            train={
                "batch_size": size,
                "updates": max(1, round(train.updates * longer)),
                "eval_every": round(train.eval_every * longer),
                "checkpoint_every": round(train.checkpoint_every * longer),
            },
        )

    return change


# The sweeps there are


def _of_module(setting: str, *values: Any) -> tuple[Level, ...]:
    names = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return tuple(
        Level(name=name, change=with_settings(module={setting: value}))
        for name, value in zip(names, values, strict=True)
    )


def _of_paco(row: str = "") -> tuple[Level, ...]:
    """Levels with and without the loss; recipe ``row`` has the paper's numbers of the latter."""
    without = Level(name="without", change=without_paco_loss, row=row)
    return Level(name="with"), without


_IMAGENET_R10 = "imagenet_lt_balanced_softmax_resnet10"
_IMAGENET_R50 = "imagenet_lt_balanced_softmax_resnet50"
_CIFAR = "cifar100_lt_balanced_softmax"

_SIZES = tuple(
    Level(name=str(size), change=with_batch_size(size)) for size in (16, 32, 64, 128, 256, 512)
)
_STREAMS = _of_module("streams", "shared", "mixed_only")
_LAYERS = _of_module("layers", 1, 2, 4, 8, 16)
_RATES = _of_module("lr_factor", 0.1, 1.0)
_DECAYS = (
    Level(name="0", change=with_settings(optim={"module_weight_decay": 0.0})),
    Level(name="5e-05", change=with_settings(optim={"module_weight_decay": 5e-5})),
    Level(name="0.0005"),  # the network's own decay
)
_FRONT = (
    Level(name="without"),
    Level(name="with", change=with_settings(hyper={"projection_front": True})),
)

_CLASSIFIER = "streams of the classifier"
_RATE = "learning rate of BatchFormer, as a multiple of the network's"
_IN_FRONT = "normalised layer in front of the projection"
_PACO, _WITHOUT = "PaCo's loss", "Without PaCo loss"

#: By name: the base, the factor, its levels, the reference, and the paper's table if there is one.
_SWEEPS: dict[str, tuple[Any, ...]] = {
    "imagenet_lt_batch_size": (_IMAGENET_R10, "batch size", _SIZES, "128", "Batch size"),
    "imagenet_lt_shared_classifier": (
        *(_IMAGENET_R50, _CLASSIFIER, _STREAMS, "shared", "Shared classifier"),
    ),
    "imagenet_lt_layers": (_IMAGENET_R10, "layers", _LAYERS, "1", "Layers"),
    "imagenet_lt_paco_loss": ("imagenet_lt_paco", _PACO, _of_paco(), "with"),
    "cifar100_lt_batch_size": (_CIFAR, "batch size", _SIZES, "512"),
    "cifar100_lt_shared_classifier": (_CIFAR, _CLASSIFIER, _STREAMS, "shared"),
    "cifar100_lt_layers": (_CIFAR, "layers", _LAYERS, "1"),
    "cifar100_lt_paco_loss": (
        *("cifar100_lt_paco", _PACO, _of_paco("cifar100_lt_without_paco_loss"), "with", _WITHOUT),
    ),
    "cifar100_lt_paco_loss_r200": (
        *("cifar100_lt_paco_r200", _PACO, _of_paco("cifar100_lt_without_paco_loss_r200")),
        *("with", _WITHOUT),
    ),
    "cifar100_lt_module_lr": (_CIFAR, _RATE, _RATES, "0.1"),
    "cifar100_lt_paco_module_decay": (
        *("cifar100_lt_paco", "weight decay of BatchFormer", _DECAYS, "0.0005"),
    ),
    "cifar100_lt_heads": (_CIFAR, "attention heads", _of_module("heads", 1, 4), "4"),
    "cifar100_lt_dropout": (_CIFAR, "dropout", _of_module("dropout", 0.0, 0.1, 0.5), "0.5"),
    "cifar100_lt_loss_scale": (
        *(_CIFAR, "scale of the loss", _of_module("loss_scale", "mean", "official"), "mean"),
    ),
    "cifar100_lt_mixed_weight": (
        *(_CIFAR, "weight of the mixed stream", _of_module("mixed_weight", 0.25, 1.0, 4.0), "1"),
    ),
    "cifar100_lt_moco_v2_front": ("cifar100_lt_moco_v2", _IN_FRONT, _FRONT, "without"),
    "cifar100_lt_moco_v3_module_lr": ("cifar100_lt_moco_v3", _RATE, _RATES, "1"),
    "cifar100_lt_moco_v3_dropout": (
        *("cifar100_lt_moco_v3", "dropout", _of_module("dropout", 0.0, 0.5), "0.5"),
    ),
    "digits_moco_v3_module_lr": ("digits_moco_v3", _RATE, _RATES, "1"),
    "demo_layers": ("demo", "layers", _of_module("layers", 1, 2, 4), "1"),
}
#: Factors that change the baseline as well.
_CHANGE_BASELINE = ("batch size", _PACO, _IN_FRONT)
SWEEPS = {
    name: Sweep(name, *row, baseline="each" if row[1] in _CHANGE_BASELINE else "once")
    for name, row in _SWEEPS.items()
}


def find_sweep(name: str) -> Sweep:
    """The sweep of this name; the error for an unknown one suggests the nearest.

    >>> find_sweep("demo_layers").level_names
    ('1', '2', '4')
    """
    if name not in SWEEPS:
        near = difflib.get_close_matches(name, SWEEPS, 3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(near)}?" if near else "`batchformer sweep` shows them all."
        )
        raise ValueError(f"There is no sweep {name!r}. {hint}")
    return SWEEPS[name]
