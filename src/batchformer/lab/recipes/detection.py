"""Detection on Pascal VOC: what features learnt by MoCo are worth for finding objects.

A row of the table is two recipes: one of `contrastive` learns the features, one here trains a
detector on them. All arms are trained alike, without BatchFormer, and each begins with the features
of the same arm; ``random_weights`` begins with none.

The protocol is MoCo's, for detectron2: R50-C4, all normalisation trained over the whole batch, 24k
updates of 16 images, statistics of normalisation measured again before it is scored
(``data.precise_norm``; an exported network has those of the training). The paper's numbers are
detectron2's, by the rule of VOC2007: ``voc07_ap``, where ``ap`` is COCO's. Ours differs in losses
and average precision, as `lab/models/faster_rcnn.py` and `lab/metrics/detection.py` say, and
biases are not decayed either. According to MoCo's authors, who recommend five
trainings, scores of trainings from the same features vary by 0.2 (AP, AP50) and 0.4 (AP75). We have
measured none of these yet.
"""

from __future__ import annotations

from batchformer.lab.config.data import DetectionConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig

#: The default number of batches of detectron2's precise-BN.
PRECISE_BATCHES = 200


def _on_features_of(start: str, title: str) -> Recipe:
    """MoCo's protocol, which begins with another recipe's network of the same arm and seed."""
    name = f"voc_{start.removeprefix('imagenet_')}"
    return Recipe(
        name=name,
        summary=f"VOC07+12, Faster R-CNN R50-C4 on the features of {title}",
        table=f"VOC2007, {title}",
        task="detection",
        data=DetectionConfig(precise_norm=PRECISE_BATCHES),
        model="resnet50",
        method="detector",
        hyper=MethodConfig(detector="c4"),
        start=start,
        # detectron2 does not decay scales and shifts of normalisation; these are nearly all of the
        # parameters that are not matrices.
        optim=OptimConfig(name="sgd", lr=0.02, momentum=0.9, weight_decay=1e-4, decayed="matrices"),
        schedule=ScheduleConfig(
            kind="multistep", warmup=100, warmup_from=0.001, milestones=(18_000, 22_000)
        ),
        train=TrainConfig(
            batch_size=16,
            updates=24_000,
            checkpoint_every=1_000,
            drop_last=True,
            log_every=20,
            sync_norm=True,  # over the whole batch, on any number of ranks
        ),
    )


def voc_moco_v2() -> Recipe:
    """VOC2007, MoCo-v2: AP 56.4, + BatchFormer 56.7. Ours: not measured yet."""
    return _on_features_of("imagenet_moco_v2", "MoCo-v2")


def voc_moco_v3() -> Recipe:
    """VOC2007, MoCo-v3: AP 46.6, + BatchFormer 48.0. Ours: not measured yet."""
    return _on_features_of("imagenet_moco_v3", "MoCo-v3")


def voc_fpn() -> Recipe:
    """The same with a pyramid of features, on those of MoCo-v3; not in the paper.

    Ours: not measured yet.
    """
    base = voc_moco_v3()
    return base.changed(
        name="voc_fpn",
        summary="VOC07+12, Faster R-CNN R50-FPN on the features of MoCo-v3",
        table=NOT_IN_THE_PAPER,
        hyper={"detector": "fpn"},
    )


def my_voc() -> Recipe:
    """Your own images with boxes, in the folders of VOC; no row of the paper.

    ``batchformer compare my_voc --data.root VOCdevkit --start RECIPE`` with a recipe whose arms
    have trained ResNet-50s: each arm begins with the network of its own. With ``--weights FILE``,
    or ``--weights timm``, arms would begin alike: there is the baseline, and random_weights, which
    begins with none.

    Lists are VOC2007's by name, as ``--data.trained-on`` and ``--data.scored-on`` say; classes
    are those that the annotations name. Lengths of the training and of the images' sides are ours,
    for a few hundred images.
    """
    base = _on_features_of("imagenet_moco_v3", "MoCo-v3")
    return base.changed(
        name="my_voc",
        summary="your own images with boxes, Faster R-CNN R50-C4, from your own weights",
        table=NOT_IN_THE_PAPER,
        data=DetectionConfig(
            trained_on=("2007/trainval",),
            shorter=tuple(range(480, 641, 32)),
            shorter_at_test=640,
        ),
        start="",
        optim={"lr": 0.01},
        schedule={"milestones": (1_125, 1_375)},
        train=TrainConfig(
            batch_size=8,
            updates=1_500,
            eval_every=500,
            drop_last=True,
            precision="bf16",
            sync_norm=True,
        ),
    )


#: In the order of `batchformer list`.
RECIPES = (
    my_voc,
    voc_moco_v2,
    voc_moco_v3,
    voc_fpn,
)
