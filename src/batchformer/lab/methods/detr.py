"""DETR and its relatives, with BatchFormerV2 between layers of the encoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.set_prediction import Targets, set_loss, total
from batchformer.lab.methods.classifier import JOINT_SCALES, head_of, insert_inside
from batchformer.lab.models.detr import Kind, best_detections, detr, padded, to_pixels, to_shares
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import match
from batchformer.plug.attach import param_groups
from batchformer.torch_private import BatchNorm

#: Layers of a ResNet that are not trained, as in DETR.
FROZEN = ("conv1", "bn1", "layer1")
#: Parameters that say where Deformable DETR looks.
POINTS = re.compile(r"\.(reference_points|sampling_offsets)\.")
#: Side of the example images that are used to find BatchFormer's places.
EXAMPLE = 64


class Detr(Method):
    """A detector that predicts a set of boxes. Its network is trained too, from ``layer2`` on.

    With BatchFormer, before ``module.at``, the tokens of an image attend to those of the other
    images at the same position. Everything after it sees 2N images, targets are doubled, and each
    stream is matched on its own. The loss is a mean over the boxes of both streams.

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
        self.detector.loss_function = JointLoss(self.hyper.detr)
        frozen = [head_of(network), *(getattr(network, name) for name in FROZEN)]
        if hyper.frozen_norm:  # its scale and shift too, as in DETR
            frozen += [part for part in network.modules() if isinstance(part, BatchNorm)]
        for part in frozen:
            part.requires_grad_(False)
        if module.enabled:
            example = padded([torch.zeros(3, EXAMPLE, EXAMPLE)] * 3)
            insert_inside(self, module, seed, below="detector.", example=example)

    def forward(self, x: Tensor, mask: Tensor, labels: Targets | None = None) -> Any:
        """The output of transformers' detector for images (N, 3, H, W) and masks (N, H, W)."""
        return self.detector(pixel_values=x, pixel_mask=mask, labels=labels)

    def forward_inputs(self, batch: Batch) -> Any:
        return padded(batch["x"])

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The loss over all decoder layers, and the parts of the last layer's loss."""
        rows = batch["row"].tolist()  # with accumulation, only those of this part
        images, boxes, labels = (
            [batch[key][row] for row in rows] for key in ("x", "boxes", "labels")
        )
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        targets = Targets(
            pad_sequence(labels, batch_first=True),
            to_shares(pad_sequence(boxes, batch_first=True), sizes),
            [len(each) for each in labels],
            batch["objects_per_image"],  # so that each box of an update counts the same
        )
        found = self(*padded(images), targets)
        two_streams = self.config.enabled and self.config.streams == "shared"
        scale = JOINT_SCALES[self.config.loss_scale] if two_streams else 1.0
        return {"loss": found.loss * scale, **found.loss_dict}

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
        """The network and the sampled points learn at ``hyper.backbone_lr_factor`` of the rate.

        The authors of Deformable DETR take a tenth for both.
        """
        slow = optim.lr * self.hyper.backbone_lr_factor
        points = [p for name, p in self.detector.named_parameters() if POINTS.search(name)]
        groups = param_groups(self.detector, optim.lr, self.module_lr_factor)
        known = set(map(id, points))
        groups[0]["params"] = [p for p in groups[0]["params"] if id(p) not in known]
        backbone = [p for p in self.network.parameters() if p.requires_grad]
        for name, params in (("backbone", backbone), ("points", points)):
            if params:
                groups.append({"params": params, "lr": slow, "name": name})
        return groups

    def why_eager(self) -> str | None:
        return "boxes are matched to predictions on the CPU"


class JointLoss:
    """The loss over one stream or both in single precision, with transformers' signature."""

    def __init__(self, kind: Kind) -> None:
        self.focal = kind != "detr"

    def __call__(
        self,
        logits: Tensor,
        targets: Targets,
        device: Any,
        boxes: Tensor,
        config: Any,
        *layers: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor], None]:
        """Loss, parts of the last layer's loss, and None.

        Args:
            logits: (N, Q, K) of the last layer, or 2N rows of both streams; boxes likewise.
            layers: logits (L, N, Q, K) and boxes (L, N, Q, 4) of every decoder layer.
        """
        classes, there, counts = match(logits, targets[:3])
        with torch.autocast(logits.device.type, enabled=False):
            doubled = Targets(classes, there.float(), counts, targets.mean)
            every_logits, every_boxes = (of.float() for of in layers)
            parts = set_loss(every_logits, every_boxes, doubled, self.focal)
            last = {name: part[-1] for name, part in parts._asdict().items()}
            return total(parts, self.focal), last, None
