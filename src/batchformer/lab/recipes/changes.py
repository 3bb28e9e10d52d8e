"""Changes of a recipe that a sweep makes, each of one thing and what follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.sets.annotated import ANNOTATED
from batchformer.lab.recipes.epochs import IMAGES
from batchformer.lab.recipes.paco import BALANCED_SOFTMAX_MODULE, PACO_MODULE
from batchformer.lab.recipes.sweep import Change


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
        raise ValueError("A sweep of batch sizes keeps the number of epochs: it is for a long tail")
    if data.name in ANNOTATED and data.train_list is None:
        return ANNOTATED[data.name].images
    if (data.name, data.ratio) not in IMAGES or data.profile != "exponential":
        raise ValueError(
            f"A sweep of batch sizes keeps the number of epochs, and the training images of "
            f"{data.name} with ratio {data.ratio:g}, {data.profile}, are not known here. Leave "
            f"--data as in the recipe."
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
