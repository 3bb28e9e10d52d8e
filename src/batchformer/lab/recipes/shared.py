"""What families of recipes share: recipes that differ in values, and schedules in epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import ScheduleConfig, TrainConfig

#: A function that makes a recipe and has the recipe's name.
Make = Callable[[], Recipe]
P = ParamSpec("P")

#: Training images by data set and ratio; the length of an epoch follows from them.
IMAGES = {
    ("cifar100", 10.0): 19_573,
    ("cifar100", 50.0): 12_608,
    ("cifar100", 100.0): 10_847,
    ("cifar100", 200.0): 9_502,
    ("cifar10", 100.0): 12_406,
    ("cifar10", 200.0): 11_203,
}


def named(
    name: str,
    function: Callable[Concatenate[str, P], Recipe],
    *values: P.args,
    **further: P.kwargs,
) -> Make:
    """The function that makes one of several recipes that differ in values only.

    Args:
        name: name of the recipe, the first argument of the function.
        function: makes all of these recipes; its docstring is theirs.
        values: its further arguments.
        further: its arguments by keyword.
    """

    def make() -> Recipe:
        return function(name, *values, **further)

    make.__name__, make.__doc__ = name, function.__doc__
    return make


def in_epochs(
    images: int, epochs: int, batch_size: int, *, evaluations: int, drop_last: bool = False
) -> TrainConfig:
    """A training of ``epochs`` epochs, with evaluations and checkpoints at equal distances.

    >>> in_epochs(10_847, 200, 128, evaluations=10).updates
    17000
    """
    per_epoch = images // batch_size if drop_last else -(-images // batch_size)
    every = epochs // evaluations * per_epoch
    return TrainConfig(
        batch_size=batch_size,
        updates=epochs * per_epoch,
        drop_last=drop_last,
        eval_every=every,
        checkpoint_every=every,
    )


def warm_up_and_drop(warmup: int, milestones: tuple[int, ...], gamma: float) -> ScheduleConfig:
    """Rates 1/n, 2/n, ..., n/n in the first n epochs, multiplied by `gamma` at each milestone."""
    return ScheduleConfig(
        kind="multistep",
        per="epoch",
        # The n-th epoch already has the full rate, so the rise takes n - 1 epochs.
        warmup=warmup - 1,
        warmup_from=1 / warmup,
        milestones=milestones,
        gamma=gamma,
    )
