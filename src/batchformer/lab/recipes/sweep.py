"""Sweeps: one recipe with one setting at several levels; nothing here needs torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.data.sets.image_layouts import ANNOTATED
from batchformer.lab.recipes.cifar_lt import BALANCED_SOFTMAX_MODULE, PACO_MODULE
from batchformer.lab.recipes.epochs import IMAGES
from batchformer.lab.recipes.paper import numbers_for

Change = Callable[[Recipe], Recipe]
BASELINE = "baseline"


@dataclass(frozen=True, kw_only=True)
class Level:
    """One value of what a sweep varies.

    Args:
        name: in tables, and of the folder.
        change: makes the level's recipe of the base.
        row: whose numbers of the paper it has, where another recipe has them as well.
    """

    name: str
    change: Change
    row: str = ""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A base recipe and the levels of one factor.

    Args:
        name: what the command line calls it.
        base: name of the recipe that is varied.
        factor: what is varied, in words.
        levels: in the order they are shown.
        reference: the level that the others are compared with.
        table: of the paper.
        baseline: ``"once"`` where the level changes nothing without BatchFormer, else ``"each"``.
    """

    name: str
    base: str
    factor: str
    levels: tuple[Level, ...]
    reference: str
    table: str = NOT_IN_THE_PAPER
    baseline: Literal["once", "each"] = "once"

    def __post_init__(self) -> None:
        if self.reference not in self.level_names:
            raise ValueError(f"{self.name} has no level {self.reference!r} to compare with.")

    @property
    def level_names(self) -> tuple[str, ...]:
        return tuple(level.name for level in self.levels)

    @property
    def known(self) -> bool:
        """Whether the base recipe is there."""
        from batchformer.lab.recipes import RECIPES

        return self.base in RECIPES

    def base_recipe(self) -> Recipe:
        """The recipe that is varied, or a line that says it is missing."""
        from batchformer.lab.recipes import find_recipe

        if not self.known:
            raise ValueError(
                f"The sweep {self.name} varies the recipe {self.base}, which this version does not "
                f"have. `batchformer sweep` shows the sweeps that can be run."
            )
        return find_recipe(self.base)

    def level(self, name: str) -> Level:
        """The level of this name, or those there are."""
        for level in self.levels:
            if level.name == name:
                return level
        known = ", ".join(self.level_names)
        raise ValueError(f"{self.name} has no level {name!r}; its levels are {known}.")

    def of_the_paper(self, base: Recipe) -> bool:
        """Whether the paper's numbers are of this base, as a person may have changed it."""
        return base.row == self.base_recipe().row

    def table_of(self, base: Recipe) -> str:
        """The paper's table that this base belongs in, or that there is none."""
        return self.table if self.of_the_paper(base) else NOT_IN_THE_PAPER

    def paper(self, name: str, base: Recipe | None) -> dict[str, dict[str, float]]:
        """The paper's numbers of a level, arm by arm; the reference has the base's as well.

        Args:
            name: of the level.
            base: the recipe that is varied, None where this version does not have it.
        """
        if base is not None and not self.of_the_paper(base):
            return {}
        own = numbers_for(self.level(name).row or f"{self.name}/{name}")
        shared = base.paper if base is not None and name == self.reference else {}
        return {arm: dict(numbers) for arm, numbers in {**shared, **own}.items()}

    def recipe(self, name: str, base: Recipe) -> Recipe:
        """The recipe of a level.

        Args:
            name: of the level.
            base: the recipe that is varied, with what a person changed of it.
        """
        return dataclasses.replace(
            self.level(name).change(base),
            name=f"{self.name}/{name}",
            summary=f"{base.summary}; {self.factor}: {name}",
            table=self.table_of(base),
            paper=self.paper(name, base),
        )

    def cells(self, arms: Sequence[str], levels: Sequence[str]) -> list[tuple[str, str]]:
        """Level and arm of everything that is trained with one seed, baselines first.

        A baseline that does not depend on the level lies with the reference.
        """
        shared = [self.reference] if self.baseline == "once" else list(levels)
        others = [arm for arm in arms if arm != BASELINE]
        return [(level, BASELINE) for level in shared] + [
            (v, arm) for v in levels for arm in others
        ]


# Changes that a level makes of a recipe: one thing, and what follows from it


def with_module(**changes: Any) -> Change:
    """BatchFormer with other settings."""
    return _with("module", changes)


def with_optim(**changes: Any) -> Change:
    """The optimizer with other settings."""
    return _with("optim", changes)


def with_hyper(**changes: Any) -> Change:
    """The method with other settings, in all arms."""
    return _with("hyper", changes)


def _with(part: str, changes: Mapping[str, Any]) -> Change:
    def change(recipe: Recipe) -> Recipe:
        changed = dataclasses.replace(getattr(recipe, part), **changes)
        return dataclasses.replace(recipe, **{part: changed})

    return change


def training_images(recipe: Recipe) -> int:
    """Images of an epoch, without reading the data."""
    data = recipe.data
    if not isinstance(data, LongTailConfig):
        raise ValueError(
            "A sweep of batch sizes keeps the number of epochs, which is known for long-tailed "
            "data alone. Choose a sweep of another setting."
        )
    if data.name in ANNOTATED and data.train_list is None:
        return ANNOTATED[data.name].images
    if (data.name, data.ratio) not in IMAGES or data.profile != "exponential":
        raise ValueError(
            "A sweep of batch sizes keeps the number of epochs, and the training images of "
            f"{data.name} with ratio {data.ratio:g}, {data.profile}, are not known here. Leave "
            "--data as in the recipe."
        )
    return IMAGES[data.name, data.ratio]


def with_batch_size(size: int) -> Change:
    """Batches of so many samples: the rate in proportion, the same number of epochs."""

    def change(recipe: Recipe) -> Recipe:
        images = training_images(recipe)
        train, schedule, before = recipe.train, recipe.schedule, recipe.train.batch_size

        def updates(batch: int) -> int:
            return images // batch if train.drop_last else -(-images // batch)

        longer = Fraction(updates(size), updates(before))
        if schedule.per == "update":
            schedule = dataclasses.replace(
                schedule,
                warmup=round(schedule.warmup * longer),
                milestones=tuple(round(at * longer) for at in schedule.milestones),
                ahead=round(schedule.ahead * longer),
            )
        return dataclasses.replace(
            recipe,
            optim=dataclasses.replace(recipe.optim, lr=recipe.optim.lr * size / before),
            schedule=schedule,
            train=dataclasses.replace(
                train,
                batch_size=size,
                updates=max(1, round(train.updates * longer)),
                eval_every=round(train.eval_every * longer),
                checkpoint_every=round(train.checkpoint_every * longer),
            ),
        )

    return change


def unchanged(recipe: Recipe) -> Recipe:
    """The base itself."""
    return recipe


def without_paco_loss(recipe: Recipe) -> Recipe:
    """Balanced Softmax on the centres' logits, seen through the query's view alone.

    BatchFormer then has the rate that the paper gives for Balanced Softmax, unless the base has
    another rate than the recipes of PaCo.
    """
    data, module = recipe.data, recipe.module
    if module.lr_factor == PACO_MODULE.lr_factor:
        module = dataclasses.replace(module, lr_factor=BALANCED_SOFTMAX_MODULE.lr_factor)
    # CIFAR's query view is an augmentation of its own; elsewhere the second view goes unused.
    of_cifar = data.name in ("cifar10", "cifar100")
    return dataclasses.replace(
        recipe,
        data=recipe.data_with(augment="autoaugment") if of_cifar else data,
        method="balanced_softmax",
        module=module,
    )
