"""Contrastive learning: T8 linear classification, detection on VOC2007; and plain ImageNet."""

from __future__ import annotations

from batchformer.lab.recipes.paper.row import Block

_LINEAR = Block(
    table="T8",
    task="contrastive",
    data="ImageNet",
    model="ResNet-50",
    columns="top1 top5",
    headline="top1",
)
_DETECTION = Block(
    table="VOC2007",
    task="detection",
    data="VOC2007",
    model="Faster R-CNN, ResNet-50",
    columns="ap ap50 ap75",
    headline="ap",
)
_RECOGNITION = Block(
    table="ImageNet",
    task="recognition",
    data="ImageNet",
    model="ResNet-50",
    columns="top1 top5",
    headline="top1",
)

_MOCO_V3_EPOCHS = "100 epochs in the table, 300 in the appendix's text"

ROWS = (
    *_LINEAR.pair(
        "MoCo-v2",
        "67.5 -",
        "68.4 88.5",
        recipe="imagenet_moco_v2_probe",
        note="200 epochs",
        batchformer_note="200 epochs",
    ),
    *_LINEAR.pair(
        "MoCo-v3",
        "68.9 -",
        "69.8 89.5",
        recipe="imagenet_moco_v3_probe",
        note=_MOCO_V3_EPOCHS,
        batchformer_note=_MOCO_V3_EPOCHS,
    ),
    *_DETECTION.pair(
        "MoCo-v2",
        "56.4 82.1 63.1",
        "56.7 82.0 63.6",
        recipe="voc_moco_v2",
        note="200 epochs",
        batchformer_note="200 epochs; AP50 is printed bold, though below the baseline's",
    ),
    *_DETECTION.pair(
        "MoCo-v3",
        "46.6 78.2 48.9",
        "48.0 78.8 51.1",
        recipe="voc_moco_v3",
        note="100 epochs",
        batchformer_note="100 epochs; the label lacks '+ BatchFormer', which the text implies",
    ),
    *_RECOGNITION.pair(
        "Cross-entropy",
        "78.9 -",
        "78.9 -",
        recipe="imagenet_resnet50",
        note="200 epochs",
        batchformer_note="200 epochs",
    ),
)
