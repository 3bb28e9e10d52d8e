"""Faster R-CNN: how well the features of a trained network transfer to object detection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.classifier import head_of
from batchformer.lab.models.faster_rcnn import faster_rcnn
from batchformer.nn.randomness import drawing

#: Our names of the four parts of the loss, by torchvision's names.
PARTS = {
    "loss_objectness": "objectness",
    "loss_rpn_box_reg": "proposals",
    "loss_classifier": "classes",
    "loss_box_reg": "boxes",
}


class Detector(Method):
    """Faster R-CNN on a network, which is trained too, except for its classifier.

    BatchFormer takes no part here. It may have taken part in the run that an arm starts from. The
    export is the network as the detector's training left it.

    Args:
        network: a ResNet of timm's.
        classes: names of the K classes.
    """

    def __init__(
        self,
        network: nn.Module,
        classes: Sequence[str],
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
        class_counts: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.network, self.classes = network, tuple(classes)
        with drawing(seed, "weights", 1):
            # It holds the network's layers without registering their parameters twice.
            self.detector = faster_rcnn(network, len(classes), hyper.detector)
        head_of(network).requires_grad_(False)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of the four losses, and each of them."""
        rows = batch["row"].tolist()  # with accumulation, only those of this part
        images = [_in_unit_range(batch["x"][row]) for row in rows]
        targets = [
            # 0 is the background.
            {"boxes": batch["boxes"][row], "labels": batch["labels"][row] + 1}
            for row in rows
        ]
        found = self.detector(images, targets)
        parts = {name: found[key] for key, name in PARTS.items()}
        return {"loss": torch.stack([*parts.values()]).sum(), **parts}

    def predict(self, x: Any) -> Any:
        """The objects found in each image, the most certain first.

        Args:
            x: images (3, H, W), uint8 or in [0, 1], of any sizes.

        Returns:
            For each image ``boxes`` (n, 4) in its pixels, ``labels`` (n,), ``scores`` (n,).
        """
        found = self.detector([_in_unit_range(image) for image in x])
        return [{**each, "labels": each["labels"] - 1} for each in found]

    def why_eager(self) -> str | None:
        return "images and their numbers of objects differ in size"


def _in_unit_range(image: Tensor) -> Tensor:
    return image if image.is_floating_point() else image / 255
