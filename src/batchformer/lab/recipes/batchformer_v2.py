"""BatchFormerV2: attention over the batch at every token, inside Vision Transformers and DETR.

It is the authors' continuation (arXiv 2204.01254). One encoder layer with 4 heads, a feed-forward
part as wide as the tokens and dropout 0.5 stands after a block of the network: each token attends
to the tokens at its position in the other images. Rows double at the first place, later places mix
the second half, one classifier serves both streams, and the loss is the mean over them.

What differs from the authors' released code for DeiT: there the first place does not double, so no
row is plain throughout, and the factor 0.5 on the module's learning rate has no effect unless its
weight decay is set too. Here rows double and the factor acts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from batchformer.lab.config.data import DetectionConfig, LongTailConfig
from batchformer.lab.config.methods import MethodConfig, MethodName, ModuleConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.recipes.recognition import deit
from batchformer.lab.recipes.shared import IMAGES, in_epochs, named

#: After block 8 of 12, counted from 0: the authors' place on ImageNet.
AFTER_BLOCK_8 = ModuleConfig(at=("blocks.9",), lr_factor=0.5)
#: After every block of ``deit_cifar``, with one encoder for all: the authors' places on CIFAR.
AFTER_EVERY_BLOCK = ModuleConfig(
    at=(*(f"blocks.{block}" for block in range(1, 6)), "norm"), share=True, lr_factor=0.5
)


def _imagenet(name: str, size: str) -> Recipe:
    """DeiT on ImageNet with BatchFormer after block 8, at half the network's rate.

    All else is as in ``imagenet_deit_*``: what differs from DeiT's own training is said there. The
    released code's page has 72.2, 79.8, 81.7 (tiny, small, base; top1), and 72.7, 80.4, 82.2 with
    the module, without seeds. Its batches are split over devices, so fewer images attend to one
    another; ``--train.accumulate`` splits them here. Ours: not measured yet.
    """
    summary = f"ImageNet, DeiT-{size.title()} with BatchFormerV2 after block 8, 300 epochs"
    return deit(name, size).changed(summary=summary, module=AFTER_BLOCK_8)


#: Images of the complete training set.
CIFAR100 = 50_000
BATCH = 256


def cifar100_deit() -> Recipe:
    """A small DeiT on all of CIFAR-100, BatchFormer after every block; no row of the paper.

    Stochastic depth, Mixup, CutMix, smoothed targets and AdamW are DeiT's. AutoAugment and Cutout
    stand in for RandAugment and erasing; there is no repeated augmentation. The rate of 1e-3
    and the length are our choice. Ours: not measured yet.
    """
    return _small(
        "cifar100_deit",
        data=LongTailConfig(name="cifar100", ratio=1.0, scores="top"),
        method="cross_entropy",
        hyper=MethodConfig(mixup=0.8, cutmix=1.0, mix_switch=0.5, smoothing=0.1, drop_path=0.1),
        images=CIFAR100,
        epochs=200,
        summary="cifar100, a small DeiT with BatchFormerV2 after every block",
    )


def _long_tailed(name: str, method: MethodName, title: str) -> Recipe:
    """A small DeiT on CIFAR-100-LT, BatchFormer after every block; no row of the paper.

    As ``cifar100_deit``, without Mixup, CutMix and smoothed targets, which act on rare classes in
    ways of their own. 6,300 updates of 256 images in bf16. Ours, with Balanced Softmax: row 7 of
    docs/preregistered.md, with its tables in docs/results/batchformer_v2.md.
    """
    return _small(
        name,
        data=LongTailConfig(name="cifar100", ratio=100.0),
        method=method,
        hyper=MethodConfig(drop_path=0.1),
        images=IMAGES["cifar100", 100.0],
        epochs=150,
        summary=f"cifar100-LT ratio 100, {title}, a small DeiT with BatchFormerV2",
    )


def _small(
    name: str,
    *,
    data: LongTailConfig,
    method: MethodName,
    hyper: MethodConfig,
    images: int,
    epochs: int,
    summary: str,
) -> Recipe:
    """AdamW at 1e-3 with a cosine after 10 epochs of warm-up, full batches of 256, bf16."""
    train = in_epochs(images, epochs, BATCH, evaluations=10, drop_last=True)
    return Recipe(
        name=name,
        summary=summary,
        task="long_tailed" if data.ratio > 1 else "recognition",
        data=data,
        model="deit_cifar",
        method=method,
        hyper=hyper,
        module=AFTER_EVERY_BLOCK,
        optim=OptimConfig(name="adamw", lr=1e-3, weight_decay=0.05, decayed="matrices"),
        schedule=ScheduleConfig(kind="cosine", per="epoch", warmup=10, warmup_from=0.01),
        train=replace(train, precision="bf16"),
    )


# Detection: after the first layer of the encoder
#
# Networks begin with weights of ImageNet: timm's, or those of a file by ``--weights``. Batch
# normalisation stays that of the weights, and the stem and the first stage are not trained, as in
# DETR. Images are mirrored and resized, but not cropped as in DETR.

#: The authors' place; the module has the rate of the transformer, ten times the backbone's.
AFTER_FIRST_LAYER = ModuleConfig(at=("model.encoder.layers.1",), lr_factor=1.0)


Kind = Literal["detr", "conditional", "deformable"]
TITLES: dict[Kind, str] = {
    "detr": "DETR",
    "conditional": "Conditional DETR",
    "deformable": "Deformable DETR",
}
COCO = DetectionConfig(name="coco", trained_on=("train2017",), scored_on=("val2017",))


def _detr(
    name: str, kind: Kind, data: DetectionConfig, images: int, parts: int, queries: int
) -> Recipe:
    """DETR, or one of its relatives, with BatchFormer after the first layer of its encoder.

    The released code's page has AP 34.8 (DETR), 40.9 (Conditional) and 43.8 (Deformable) on COCO,
    and 36.9, 42.3 and 45.5 with the module, without seeds; on VOC it has none. There 2 or 3 images
    of a device attend to one another, which ``train.accumulate`` gives here. AdamW has a tenth of
    the rate for the backbone and for the sampled points of Deformable DETR, and gradients are
    clipped at 0.1. Weights of the loss are the authors', and so are initial weights, but for what
    ``models.detr`` says and for BatchFormer, all of whose matrices they draw by Xavier's rule. Our
    choice are 50 epochs with a drop after 40, the batches of Conditional DETR, and all of VOC.
    Boxes are not refined from layer to layer. Ours: not measured yet.
    """
    where = "COCO" if data.name == "coco" else "VOC07+12"
    return Recipe(
        name=name,
        summary=f"{where}, {TITLES[kind]} with BatchFormerV2 after the first encoder layer",
        task="detection",
        data=data,
        model="resnet50.tv_in1k",
        weights="timm",
        method="detr",
        hyper=MethodConfig(detr=kind, queries=queries, frozen_norm=True),
        module=AFTER_FIRST_LAYER,
        optim=OptimConfig(
            name="adamw", lr=2e-4 if kind == "deformable" else 1e-4, weight_decay=1e-4
        ),
        schedule=ScheduleConfig(kind="multistep", per="epoch", milestones=(40,)),
        train=TrainConfig(
            batch_size=images,
            accumulate=parts,
            epochs=50,
            eval_epochs=10,
            drop_last=True,
            precision="tf32",
            clip_norm=0.1,
        ),
    )


def my_boxes() -> Recipe:
    """Your own images with boxes, Deformable DETR; no row of the paper.

    ``batchformer compare my_boxes --data.root VOCdevkit --weights FILE`` with the folders of Pascal
    VOC and a ResNet-50 of ImageNet. ``--data.name coco --data.trained-on train --data.scored-on
    val`` reads those of COCO. Lists are VOC2007's by default, and classes are those that the
    annotations name. ``--hyper.detr`` chooses another of the family, ``--module.at`` another place.
    Lengths of the training and of the images' sides are ours, for a few hundred images. Ours:
    row 8 of docs/preregistered.md, with its tables in docs/results/batchformer_v2.md.
    """
    base = _detr("my_boxes", "deformable", DetectionConfig(), 8, 1, 100)
    return base.changed(
        summary="your own images with boxes, Deformable DETR with BatchFormerV2",
        data=DetectionConfig(
            trained_on=("2007/trainval",),
            shorter=tuple(range(320, 481, 32)),
            shorter_at_test=480,
        ),
        schedule=ScheduleConfig(kind="cosine", warmup=100),
        train=TrainConfig(
            batch_size=8,
            updates=2_000,
            eval_every=500,
            drop_last=True,
            precision="tf32",
            clip_norm=0.1,
        ),
    )


#: In the order of `batchformer list`.
RECIPES = (
    *(named(f"imagenet_deit_{size}_v2", _imagenet, size) for size in ("tiny", "small", "base")),
    cifar100_deit,
    named(
        "cifar100_lt_deit_balanced_softmax", _long_tailed, "balanced_softmax", "Balanced Softmax"
    ),
    named("cifar100_lt_deit_cross_entropy", _long_tailed, "cross_entropy", "cross-entropy"),
    my_boxes,
    # Images of an update, parts that attend among themselves, and queries: the authors' on COCO.
    named("voc_deformable_detr", _detr, "deformable", DetectionConfig(), 16, 1, 100),
    named("coco_detr", _detr, "detr", COCO, 8, 4, 100),
    named("coco_conditional_detr", _detr, "conditional", COCO, 8, 4, 300),
    named("coco_deformable_detr", _detr, "deformable", COCO, 24, 8, 300),
)
