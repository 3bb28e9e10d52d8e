"""LDAM-DRW on CIFAR-100-LT; no row of the paper, the loss that RIDE builds on."""

from __future__ import annotations

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.recipes.epochs import IMAGES, in_epochs, warm_up_and_drop


def cifar100_lt_ldam() -> Recipe:
    """CIFAR-100-LT r = 100, LDAM-DRW as its authors train it; no row of the paper.

    Ours: not measured yet.
    """
    return Recipe(
        name="cifar100_lt_ldam",
        summary="cifar100-LT ratio 100, LDAM-DRW, ResNet-32",
        table=NOT_IN_THE_PAPER,
        task="long_tailed",
        data=LongTailConfig(name="cifar100", ratio=100.0, augment="standard"),
        method="ldam",
        hyper=MethodConfig(margin=0.5, scale=30.0, reweight_epoch=160, reweight_beta=0.9999),
        optim=OptimConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=2e-4),
        schedule=warm_up_and_drop(5, (160, 180), 0.01),
        train=in_epochs(IMAGES["cifar100", 100.0], 200, 128, evaluations=10),
    )
