"""DETR and its relatives, with BatchFormerV2 between layers of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.classifier import JOINT_SCALES, head_of, insert_inside
from batchformer.lab.models.detr import best_detections, detr, padded, to_pixels, to_shares
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import match
from batchformer.plug.attach import param_groups

#: Names of the parts of the loss, by those of transformers.
PARTS = {"loss_ce": "classes", "loss_bbox": "boxes", "loss_giou": "overlap"}
#: Layers of a ResNet that are not trained, as in DETR.
FROZEN = ("conv1", "bn1", "layer1")
#: Side of the images by which places of BatchFormer are found.
EXAMPLE = 64


class Detr(Method):
    """A detector that predicts a set of boxes, on a network that is trained too but for its stem.

    With BatchFormer the tokens of an image attend to those of the other images at the same place,
    from ``module.at`` on. Everything after it sees 2N images, targets are doubled, and each stream
    is matched on its own. The loss is a mean over the boxes of both.

    Args:
        network: a ResNet of timm's.
        classes: names of the K classes.
        module: places are named as in the detector: ``model.encoder.layers.1``.
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
        self.network, self.classes, self.config = network, tuple(classes), module
        self.hyper = hyper
        self.module_lr_factor = module.lr_factor
        with drawing(seed, "weights", 1):
            # It holds the network's layers without registering their parameters twice.
            self.detector = detr(network, len(classes), self.hyper.detr, self.hyper.queries)
        self.detector.loss_function = JointLoss(self.detector.loss_function)
        for part in (head_of(network), *(getattr(network, name) for name in FROZEN)):
            part.requires_grad_(False)
        if module.enabled:
            example = padded([torch.zeros(3, EXAMPLE, EXAMPLE)] * 3)
            insert_inside(self, module, seed, below="detector.", example=example)

    def forward(
        self, x: Tensor, mask: Tensor, labels: list[dict[str, Tensor]] | None = None
    ) -> Any:
        """What transformers' detector gives for images (N, 3, H, W) and their masks (N, H, W)."""
        return self.detector(pixel_values=x, pixel_mask=mask, labels=labels)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The loss over all decoder layers, and the parts of the last one's."""
        rows = batch["row"].tolist()  # of an accumulated part: only its own
        images = [batch["x"][row] for row in rows]
        labels = [
            {
                "boxes": to_shares(batch["boxes"][row], *batch["x"][row].shape[1:]),
                "class_labels": batch["labels"][row],
            }
            for row in rows
        ]
        found = self(*padded(images), labels)
        scale = JOINT_SCALES[self.config.loss_scale] if self._two_streams() else 1.0
        parts = {name: found.loss_dict[key] for key, name in PARTS.items()}
        return {"loss": found.loss * scale, **parts}

    def _two_streams(self) -> bool:
        return self.config.enabled and self.config.streams == "shared"

    def predict(self, x: Any) -> Any:
        """The objects found in each image, the most certain first; images are seen one at a time.

        Args:
            x: images (3, H, W), uint8 or in [0, 1], of any sizes.

        Returns:
            For each image ``boxes`` (n, 4) in its pixels, ``labels`` (n,), ``scores`` (n,).
        """
        found = []
        for image in x:
            out = self(*padded([image]))
            logits, shares = out.logits[0].float(), out.pred_boxes[0].float()
            scores, labels, best = best_detections(logits, shares, self.hyper.detr)
            boxes = to_pixels(best, *image.shape[1:])
            found.append({"boxes": boxes, "labels": labels, "scores": scores})
        return found

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """The network learns at ``hyper.backbone_lr_factor`` of the detector's rate."""
        backbone = [p for p in self.network.parameters() if p.requires_grad]
        rate = optim.lr * self.hyper.backbone_lr_factor
        return [
            {"params": backbone, "lr": rate, "name": "backbone"},
            *param_groups(self.detector, optim.lr, self.module_lr_factor),
        ]

    def why_eager(self) -> str | None:
        return "boxes are matched to predictions on the CPU"


class JointLoss:
    """A loss of transformers, in single precision, over the streams that there are.

    Args:
        loss: of logits (N, Q, K), N targets, the device, boxes (N, Q, 4), the configuration, and
            logits and boxes of every decoder layer.
    """

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, logits: Tensor, labels: list[Any], device: Any, *outputs: Any) -> Any:
        logits, *others = (o.float() if isinstance(o, Tensor) else o for o in (logits, *outputs))
        with torch.autocast(logits.device.type, enabled=False):
            return self.loss(logits, match(logits, labels), device, *others)
