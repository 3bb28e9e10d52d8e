"""DETR, Conditional DETR and Deformable DETR of Hugging Face, on timm's ResNets."""

from __future__ import annotations

from math import log
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.lab.data.transforms import IMAGENET
from batchformer.lab.models.faster_rcnn import STAGES, Borrower, stage_channels

Kind = Literal["detr", "conditional", "deformable"]

#: By kind: the prefix of its class names in transformers, and the stages whose maps it reads.
FAMILIES: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "detr": ("Detr", STAGES[3:]),
    "conditional": ("ConditionalDetr", STAGES[3:]),
    "deformable": ("DeformableDetr", STAGES[1:]),
}
#: Sizes that differ from the defaults of transformers. Only tests set them.
SIZES: dict[str, Any] = {}
#: Layers of deformable attention that say where to sample, and how much of it to take.
SAMPLING = ("sampling_offsets.weight", "attention_weights.weight")
#: Initial probability of a class, for detectors with the focal loss.
PRIOR = 0.01
#: Initial logit of a box's width and height in Deformable DETR.
SMALL_BOX = -2.0
#: Largest number of detections per image, as in COCO.
DETECTIONS = 100


def detr(network: nn.Module, classes: int, kind: Kind, queries: int) -> Any:
    """A detector of K classes on the layers of a ResNet of timm's, which it does not own.

    As in :func:`~batchformer.lab.models.faster_rcnn.faster_rcnn`, the caller registers the network,
    and other networks are refused. There are as many predictions for an image as queries. Every
    decoder layer has a loss. Sizes are the defaults of transformers, which are the authors'.
    Initial weights are the authors' too, except for biases and the convolutions before the encoder,
    which transformers draws.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError("DETR needs: pip install 'batchformer[lab,detection,hf]'") from error
    channels = stage_channels(network)
    name, stages = FAMILIES[kind]
    # A backbone of as many channels with one block a stage, which ours replaces below.
    placeholder = transformers.ResNetConfig(
        hidden_sizes=channels,
        depths=[1, 1, 1, 1],
        out_features=[f"stage{STAGES.index(stage) + 1}" for stage in stages],
    )
    config = getattr(transformers, f"{name}Config")(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=placeholder,
        num_labels=classes,
        num_queries=queries,
        auxiliary_loss=True,
        **SIZES,
    )
    model = getattr(transformers, f"{name}ForObjectDetection")(config)
    initialise(model, kind)
    model.model.backbone = Maps(network, stages)
    return model


def initialise(model: Any, kind: Kind) -> None:
    """Draw the transformer's matrices, the queries and the heads as the authors do.

    The initial weights of transformers are for models that then load trained ones: queries are so
    alike that all reference points of Deformable DETR lie in the middle of the image, and every
    class begins with a probability of a half.
    """
    transformer = model.model
    for part in (transformer.encoder, transformer.decoder):
        for name, weight in part.named_parameters():
            # Zero matrices of deformable attention stay zero, so it begins at fixed offsets.
            if weight.ndim > 1 and not name.endswith(SAMPLING):
                nn.init.xavier_uniform_(weight)
    nn.init.normal_(transformer.query_position_embeddings.weight)
    deformable = kind == "deformable"
    # Deformable DETR lists one head per layer; all of them are the same module.
    classes = model.class_embed[0] if deformable else model.class_labels_classifier
    boxes = model.bbox_embed[0] if deformable else model.bbox_predictor
    for layer in (classes, *boxes.layers):
        layer.reset_parameters()
    if kind != "detr":
        nn.init.constant_(classes.bias, -log((1 - PRIOR) / PRIOR))
        nn.init.zeros_(boxes.layers[-1].weight)
        nn.init.zeros_(boxes.layers[-1].bias)
    if deformable:
        nn.init.constant_(boxes.layers[-1].bias[2:], SMALL_BOX)


class Maps(Borrower):
    """Feature maps of some stages, with the masks of padding at their sizes."""

    def __init__(self, network: nn.Module, stages: tuple[str, ...]) -> None:
        super().__init__(network)
        self.stages = stages

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Maps (N, C, h, w) and masks (N, h, w) of images (N, 3, H, W) and masks (N, H, W)."""
        x, maps = self.stem(pixel_values), []
        for stage in STAGES:
            x = getattr(self.network, stage)(x)
            if stage in self.stages:
                small = F.interpolate(pixel_mask[None].float(), size=x.shape[-2:])[0]
                maps.append((x, small.bool()))
        return maps


def padded(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Normalised images in one tensor (N, 3, H, W), and bool masks (N, H, W), False at padding.

    Images are (3, H, W) each, uint8 or in [0, 1].
    """
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    device = images[0].device
    # Creating a tensor from Python numbers on the device would wait for all earlier work.
    mean, std = (
        torch.tensor(v).view(3, 1, 1).to(device, non_blocking=True)
        for v in (IMAGENET.mean, IMAGENET.std)
    )
    x = torch.zeros(len(images), 3, height, width, device=device)
    mask = torch.zeros(len(images), height, width, dtype=torch.bool, device=device)
    for row, image in enumerate(images):
        part = image if image.is_floating_point() else image / 255
        _, own_height, own_width = image.shape
        x[row, :, :own_height, :own_width] = (part - mean) / std
        mask[row, :own_height, :own_width] = True
    return x, mask


def to_shares(boxes: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    """Corners (N, n, 4) in pixels to centre, width and height (N, n, 4) in shares of the image.

    Sizes are heights and widths of the N images.

    >>> to_shares(torch.tensor([[[10.0, 0.0, 30.0, 20.0]]]), [(40, 100)])
    tensor([[[0.2000, 0.2500, 0.2000, 0.5000]]])
    """
    left_top, right_bottom = boxes[..., :2], boxes[..., 2:]
    shares = torch.cat(((left_top + right_bottom) / 2, right_bottom - left_top), dim=-1)
    whole = torch.tensor([[(width, height, width, height)] for height, width in sizes])
    return shares / whole.to(boxes.device, non_blocking=True)


def to_pixels(shares: Tensor, height: int, width: int) -> Tensor:
    """The reverse of :func:`to_shares` for one image, (n, 4)."""
    centre, half = shares[..., :2], shares[..., 2:] / 2
    boxes = torch.cat((centre - half, centre + half), dim=-1)
    return boxes * boxes.new_tensor([width, height, width, height])


def best_detections(logits: Tensor, shares: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels and boxes of one image, the most certain first.

    Logits are (Q, K), or (Q, K + 1) for DETR, which has a class "no object" and takes one answer
    from each query. The others give each class a probability of its own, and a query may answer
    several times. Boxes (Q, 4) are in shares of the image.
    """
    if kind == "detr":
        scores, labels = logits.softmax(-1)[:, :-1].max(-1)
        order = scores.argsort(descending=True)[:DETECTIONS]
        return scores[order], labels[order], shares[order]
    found = logits.sigmoid().flatten().topk(min(DETECTIONS, logits.numel()))
    queries, labels = found.indices // logits.shape[1], found.indices % logits.shape[1]
    return found.values, labels, shares[queries]
