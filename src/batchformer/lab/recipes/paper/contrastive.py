"""Contrastive learning: T8 linear classification, detection on VOC2007; and plain ImageNet."""

from __future__ import annotations

from batchformer.lab.recipes.paper.row import read_rows

ROWS = (
    *read_rows(
        "contrastive",
        """
= T8 | ImageNet | ResNet-50 | top1 top5
MoCo-v2 | imagenet_moco_v2_probe
  67.5 -
  # 200 epochs
  + 68.4 88.5
  # 200 epochs
MoCo-v3 | imagenet_moco_v3_probe
  68.9 -
  # 100 epochs in the table, 300 in the appendix's text
  + 69.8 89.5
  # 100 epochs in the table, 300 in the appendix's text
""",
    ),
    *read_rows(
        "detection",
        """
= VOC2007 | VOC2007 | Faster R-CNN, ResNet-50 | voc07_ap voc07_ap50 voc07_ap75
# scores of detectron2, so by the rule of VOC2007 and not by COCO's
MoCo-v2 | voc_moco_v2
  56.4 82.1 63.1
  # 200 epochs
  + 56.7 82.0 63.6
  # 200 epochs; AP50 is printed bold, though below the baseline's
MoCo-v3 | voc_moco_v3
  46.6 78.2 48.9
  # 100 epochs
  + 48.0 78.8 51.1
  # 100 epochs; the label lacks '+ BatchFormer', which the text implies
""",
    ),
    *read_rows(
        "recognition",
        """
= ImageNet | ImageNet | ResNet-50 | top1 top5
# 200 epochs
Cross-entropy | imagenet_resnet50
  78.9 -
  + 78.9 -
""",
    ),
)
