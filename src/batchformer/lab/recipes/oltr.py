"""OLTR in two stages: ImageNet-LT (table 2), Places-LT (table 4), and CIFAR-100-LT for measuring.

The settings are those of its authors' code in its last version. In the second stage a batch has
four images of each of its classes. Every arm starts from the same arm of the first stage, so that
the whole pipeline has BatchFormer or none of it has; ``--start RECIPE/baseline`` has it in the
second stage alone. The authors choose the epoch by validation accuracy; here the last is reported.
They count classes with exactly 100 or 20 training images as many and few; here these are medium, as
in the paper.
"""

from __future__ import annotations

from dataclasses import replace

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.recipes.image_files_lt import DATA, PLACES_DATA
from batchformer.lab.recipes.image_files_lt import IMAGES as FILES
from batchformer.lab.recipes.shared import IMAGES, in_epochs

#: Training images of CIFAR-100-LT at ratio 100.
CIFAR_IMAGES = IMAGES["cifar100", 100.0]
CIFAR_DATA = LongTailConfig(name="cifar100", ratio=100.0, augment="standard")


def _thirds(epochs: int) -> ScheduleConfig:
    """The rate falls to a tenth after each third of the epochs."""
    return ScheduleConfig(
        kind="multistep", per="epoch", milestones=(epochs // 3, 2 * epochs // 3), gamma=0.1
    )


def _balanced(data: LongTailConfig) -> LongTailConfig:
    """Class-balanced batches with four images of each class."""
    return replace(data, sampler="class_balanced", per_turn=4)


def imagenet_lt_oltr_plain() -> Recipe:
    """OLTR's first stage on ImageNet-LT, 30 epochs of cross-entropy; no row of the paper."""
    return Recipe(
        name="imagenet_lt_oltr_plain",
        summary="ImageNet-LT, OLTR's first stage, ResNet-10",
        task="long_tailed",
        data=DATA,
        model="resnet10",
        method="oltr_plain",
        hyper=MethodConfig(backbone_lr_factor=1.0),
        optim=OptimConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=_thirds(30),
        train=in_epochs(FILES["imagenet_lt"], 30, 128, evaluations=3, drop_last=True),
    )


def imagenet_lt_oltr() -> Recipe:
    """Table 2, ResNet-10: OLTR 35.6 (all); the paper has no row with BatchFormer.

    60 epochs from the network of the first stage, with attention and a new linear layer on its
    features. Ours: not measured yet.
    """
    return imagenet_lt_oltr_plain().changed(
        name="imagenet_lt_oltr",
        summary="ImageNet-LT, OLTR, ResNet-10",
        table="T2 ImageNet-LT, OLTR, ResNet-10",
        data=_balanced(DATA),
        method="oltr",
        hyper=MethodConfig(attention_after="layer4", fresh_layer=True, backbone_lr_factor=0.1),
        start="imagenet_lt_oltr_plain",
        schedule=_thirds(60),
        train=in_epochs(FILES["imagenet_lt"], 60, 128, evaluations=6, drop_last=True),
    )


def places_lt_oltr_plain() -> Recipe:
    """OLTR's first stage on Places-LT: all layers, 30 epochs; no row of the paper.

    A linear layer of 512 channels stands before the classifier. The authors begin with ImageNet's
    weights of Caffe, here they are torchvision's first ones, by timm; ``--weights FILE`` names
    others. Features learn at a hundredth of the classifier's rate.
    """
    return Recipe(
        name="places_lt_oltr_plain",
        summary="Places-LT, OLTR's first stage, ResNet-152",
        task="long_tailed",
        data=PLACES_DATA,
        model="resnet152.tv_in1k",
        weights="timm",
        method="oltr_plain",
        hyper=MethodConfig(feature_layer=512, backbone_lr_factor=0.01),
        optim=OptimConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=_thirds(30),
        train=in_epochs(FILES["places_lt"], 30, 128, evaluations=3, drop_last=True),
    )


def places_lt_oltr() -> Recipe:
    """Table 4: OLTR 35.9 (all); the paper has no row with BatchFormer.

    Only attention, the linear layer and the classifier are trained, 30 epochs. Ours: not measured
    yet.
    """
    return places_lt_oltr_plain().changed(
        name="places_lt_oltr",
        summary="Places-LT, OLTR, ResNet-152",
        table="T4 Places-LT, OLTR",
        data=_balanced(PLACES_DATA),
        weights="",
        method="oltr",
        hyper=MethodConfig(
            feature_layer=512,
            attention_after="layer4",
            frozen_backbone=True,
            backbone_lr_factor=0.01,
            centroid_lr_factor=1.0,
        ),
        start="places_lt_oltr_plain",
        optim=OptimConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=5e-4),
    )


def cifar100_lt_oltr_plain() -> Recipe:
    """OLTR's first stage on CIFAR-100-LT; no row of the paper.

    The authors have no configuration for CIFAR. Lengths, crop and flip are those that others
    train cross-entropy with there: 200 epochs. Ours, 3 seeds: 41.4, + BatchFormer 41.0.
    """
    return Recipe(
        name="cifar100_lt_oltr_plain",
        summary="cifar100-LT ratio 100, OLTR's first stage, ResNet-32",
        task="long_tailed",
        data=CIFAR_DATA,
        method="oltr_plain",
        hyper=MethodConfig(backbone_lr_factor=1.0),
        optim=OptimConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="multistep", per="epoch", milestones=(160, 180), gamma=0.1),
        train=in_epochs(CIFAR_IMAGES, 200, 128, evaluations=10, drop_last=True),
    )


def cifar100_lt_oltr() -> Recipe:
    """OLTR on CIFAR-100-LT, ratio 100; no row of the paper.

    The second stage is that of ImageNet-LT: its rates, 60 epochs, attention, a new linear layer.
    Ours, 3 seeds: 41.5, + BatchFormer 42.1.
    """
    base = imagenet_lt_oltr()
    return base.changed(
        name="cifar100_lt_oltr",
        summary="cifar100-LT ratio 100, OLTR, ResNet-32",
        table="not in the paper (T2 has it on ImageNet-LT)",
        data=_balanced(CIFAR_DATA),
        model="resnet32",
        hyper={"attention_after": "layer3", "attention_side": 8},
        start="cifar100_lt_oltr_plain",
        train=in_epochs(CIFAR_IMAGES, 60, 128, evaluations=6, drop_last=True),
    )


#: In the order of `batchformer list`.
RECIPES = (
    cifar100_lt_oltr_plain,
    cifar100_lt_oltr,
    imagenet_lt_oltr_plain,
    imagenet_lt_oltr,
    places_lt_oltr_plain,
    places_lt_oltr,
)
