"""The loss of DETR and its relatives: each box is matched to one prediction, then compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: Weights of the L1 distance and of the overlap, in the cost of a match and in the loss.
DISTANCE, OVERLAP = 5.0, 2.0
#: The focal loss of Conditional and Deformable DETR.
ALPHA, GAMMA = 0.25, 2.0
#: Weight of "no object" in DETR's cross-entropy.
NO_OBJECT = 0.1


class Targets(NamedTuple):
    """The objects of N images, padded to M, the largest number of objects in an image."""

    classes: Tensor  # (N, M) int64
    boxes: Tensor  # (N, M, 4): centre, width and height in shares of the image
    counts: Sequence[int]  # objects of each image
    mean: float  # mean number of objects per image, which normalises the losses


class SetLoss(NamedTuple):
    """Losses of L decoder layers, (L,) each."""

    classes: Tensor
    boxes: Tensor
    overlap: Tensor


def set_loss(logits: Tensor, boxes: Tensor, targets: Targets, focal: bool) -> SetLoss:
    """The losses of every decoder layer, each with its own match; :func:`total` weighs them.

    All layers and images are computed at once, and a device waits for the host once, while boxes
    are matched. Transformers has the same losses, layer by layer and image by image.

    Args:
        logits: (L, N, Q, K) if `focal`, where each class has a probability of its own; for DETR
            (L, N, Q, K + 1), where the last class is "no object".
        boxes: (L, N, Q, 4) as in :class:`Targets`.
    """
    queries, none = logits.shape[2], logits.shape[3] - (not focal)
    chosen = matched(logits.detach(), boxes.detach(), targets, focal)
    exists = (chosen < queries)[..., None]
    # A place without an object gets the same box on both sides: no loss and no gradient.
    index = chosen.clamp(max=queries - 1)[..., None].expand(*chosen.shape, 4)
    found, there = (torch.where(exists, b, 0.5) for b in (boxes.gather(2, index), targets.boxes))
    # An extra query takes the classes of places without an object, and is then cut off.
    wanted = chosen.new_full((*logits.shape[:2], queries + 1), none)
    wanted = wanted.scatter(2, chosen, targets.classes.expand_as(chosen))[..., :-1]
    number = max(targets.mean * logits.shape[1], 1.0)
    of_classes = _focal(logits, wanted) / number if focal else _weighted_entropy(logits, wanted)
    distance = (found - there).abs().sum((1, 2, 3)) / number
    overlap = (1 - generalized_iou(found, there)).sum((1, 2)) / number
    return SetLoss(of_classes, distance, overlap)


def total(loss: SetLoss, focal: bool) -> Tensor:
    """The weighted sum over parts and layers."""
    return (_class_weight(focal) * loss[0] + DISTANCE * loss[1] + OVERLAP * loss[2]).sum()


def _class_weight(focal: bool) -> float:
    return 2.0 if focal else 1.0


def matched(logits: Tensor, boxes: Tensor, targets: Targets, focal: bool) -> Tensor:
    """The query of each object in each layer, (L, N, M), by the cheapest one-to-one match.

    Padding gets Q, and so do objects that are left over because there are fewer queries.
    """
    from scipy.optimize import linear_sum_assignment

    layers, images, queries, _ = logits.shape
    classes = targets.classes[None, :, None].expand(layers, images, queries, -1)
    cost = _class_weight(focal) * _class_cost(logits, focal).gather(3, classes)
    cost = cost + DISTANCE * torch.cdist(boxes, targets.boxes.expand(layers, -1, -1, -1), p=1)
    there = targets.boxes[:, None]
    cost = cost - OVERLAP * generalized_iou(boxes[..., None, :], there)
    # A prediction that is not finite is matched last; it then shows in the loss.
    worst = torch.finfo(cost.dtype).max
    on_host = cost.nan_to_num(nan=worst, posinf=worst, neginf=worst).cpu().numpy()
    chosen = np.full((layers, images, targets.classes.shape[1]), queries)
    for layer in range(layers):
        for image, count in enumerate(targets.counts):
            rows, columns = linear_sum_assignment(on_host[layer, image, :, :count])
            chosen[layer, image, columns] = rows
    return torch.from_numpy(chosen).to(logits.device, non_blocking=True)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Generalized IoU (...) of boxes (..., 4) with boxes of the same or a broadcast shape.

    Boxes are centre, width and height. Union and enclosing box are positive for positive sizes.

    >>> a = torch.tensor([0.5, 0.5, 0.4, 0.2])
    >>> generalized_iou(a, torch.tensor([[0.5, 0.5, 0.4, 0.2], [0.5, 0.5, 0.4, 0.4]]))
    tensor([1.0000, 0.5000])
    """
    low_a, low_b = (box[..., :2] - box[..., 2:] / 2 for box in (a, b))
    high_a, high_b = (box[..., :2] + box[..., 2:] / 2 for box in (a, b))
    both = _area((torch.minimum(high_a, high_b) - torch.maximum(low_a, low_b)).clamp(min=0))
    union = _area(a[..., 2:]) + _area(b[..., 2:]) - both
    around = _area(torch.maximum(high_a, high_b) - torch.minimum(low_a, low_b))
    return both / union - (around - union) / around


def _area(sizes: Tensor) -> Tensor:
    # The backward pass of prod would wait for the device, to look for zeros.
    return sizes[..., 0] * sizes[..., 1]


def _class_cost(logits: Tensor, focal: bool) -> Tensor:
    if not focal:
        return -logits.softmax(-1)
    p = logits.sigmoid()
    yes = ALPHA * (1 - p) ** GAMMA * -(p + 1e-8).log()
    no = (1 - ALPHA) * p**GAMMA * -(1 - p + 1e-8).log()
    return yes - no


def _focal(logits: Tensor, wanted: Tensor) -> Tensor:
    """Sums (L,) over images, queries and classes; wanted (L, N, Q) is K for "no object"."""
    target = wanted[..., None] == torch.arange(logits.shape[-1], device=logits.device)
    loss = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
    p = logits.sigmoid()
    missed = torch.where(target, 1 - p, p)
    return (torch.where(target, ALPHA, 1 - ALPHA) * missed**GAMMA * loss).sum((1, 2, 3))


def _weighted_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Weighted means (L,) over images and queries."""
    weight = torch.where(wanted == logits.shape[-1] - 1, NO_OBJECT, 1.0)
    loss = F.cross_entropy(logits.movedim(-1, 1), wanted, reduction="none")
    return (weight * loss).sum((1, 2)) / weight.sum((1, 2))
