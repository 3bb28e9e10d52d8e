"""Average precision of detections, by COCO's rule and by that of Pascal VOC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.insight.optional import extra

Boxes = Mapping[str, Tensor]


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision in percent, as means over classes and by class."""

    ap: float  # mean over IoU thresholds .50, .55, ..., .95
    ap50: float
    ap75: float
    by_class: Tensor  # (K,) `ap` of each class; NaN for a class without objects


def average_precision(pairs: Iterable[tuple[Boxes, Boxes]], classes: int) -> AveragePrecision:
    """COCO's average precision, by torchmetrics.

    Precision is sampled at 101 recalls, and the 100 detections of an image with the highest scores
    count. A difficult object is treated as a COCO crowd: it need not be found, and any number of
    detections in it are neither right nor wrong.

    Papers on Pascal VOC use the same names but often detectron2's numbers, which follow another
    rule: see :func:`voc_average_precision`.

    Args:
        pairs: for each image its detections, ``boxes`` (n, 4), ``labels`` (n,) and ``scores``
            (n,), and its objects, ``boxes`` (m, 4), ``labels`` (m,) and ``difficult`` (m,); on the
            CPU.
        classes: K; labels are 0..K-1.
    """
    with extra("lab,detection"):
        from torchmetrics.detection import MeanAveragePrecision

        metric = MeanAveragePrecision(class_metrics=True, backend="pycocotools")
    for found, there in pairs:
        metric.update([dict(found)], [{**there, "iscrowd": there["difficult"].long()}])
    scores = metric.compute()
    by_class = torch.full((classes,), torch.nan)
    for label, value in zip(
        scores["classes"].reshape(-1).tolist(),
        scores["map_per_class"].reshape(-1).tolist(),
        strict=True,
    ):
        by_class[label] = 100 * value if value >= 0 else torch.nan  # -1: no objects
    ap, ap50, ap75 = (100 * float(scores[name]) for name in ("map", "map_50", "map_75"))
    return AveragePrecision(ap, ap50, ap75, by_class)


Rule = Literal["eleven", "area"]

#: IoU thresholds over which average precision is averaged.
THRESHOLDS = tuple((50 + 5 * i) / 100 for i in range(10))


def voc_rule(lists: Iterable[str]) -> Rule:
    """The rule for these years of images: eleven points for VOC2007, the area for later years.

    >>> voc_rule(["2007/test"]), voc_rule(["2007/test", "2012/val"])
    ('eleven', 'area')
    """
    return "eleven" if all(name.split("/")[0] == "2007" for name in lists) else "area"


def voc_average_precision(
    pairs: Iterable[tuple[Boxes, Boxes]], classes: int, rule: Rule
) -> AveragePrecision:
    """Average precision by Pascal VOC's own rule, at one overlap or, as detectron2 does, at ten.

    A detection belongs to the object of its class that it overlaps with most. If the overlap is at
    least the threshold, the detection of that object with the highest score is right and the others
    are wrong; on a difficult object they are neither. Difficult objects need not be found. The
    number of detections is not limited. Precision is made monotone in recall, then

    - ``eleven`` takes its mean at recalls 0, 0.1, ..., 1, as in VOC2007;
    - ``area`` takes the area under its curve, as since VOC2010.

    VOC counts the last pixel of a box as part of it, and so do these boxes, which run from the left
    edge of their first pixel to the right edge of their last. detectron2 rounds boxes to a tenth of
    a pixel and scores to a thousandth, and requires an overlap above the threshold.
    """
    pairs = list(pairs)
    table = torch.full((classes, len(THRESHOLDS)), torch.nan, dtype=torch.float64)
    for label in range(classes):
        objects = sum(
            int((~there["difficult"][there["labels"] == label]).sum()) for _, there in pairs
        )
        if not objects:
            continue
        matched = _matched(pairs, label)
        for column, least in enumerate(THRESHOLDS):
            hits, misses = _hits_and_misses(*matched, least)
            table[label, column] = _reduced(hits, hits + misses, objects, rule)
    scored = 100 * table[~table[:, 0].isnan()]
    ap, ap50, ap75 = (
        float(part.mean()) for part in (scored, scored[:, 0], scored[:, THRESHOLDS.index(0.75)])
    )
    return AveragePrecision(ap, ap50, ap75, 100 * table.mean(1).float())


def _matched(pairs: Sequence[tuple[Boxes, Boxes]], label: int) -> tuple[Tensor, Tensor, Tensor]:
    """All detections of a class by falling score, with the object that each overlaps with most.

    Returns the overlap (D,), -1 if the image has no object of the class; the object's number (D,),
    counted over all images; and whether the object is difficult (D,).
    """
    from torchvision.ops import box_iou

    scores, overlaps, owners, difficult, before = [], [], [], [], 0
    for found, there in pairs:
        mine, own = found["labels"] == label, there["labels"] == label
        boxes, objects = found["boxes"][mine].double(), there["boxes"][own].double()
        if len(objects):
            best = box_iou(boxes, objects).max(1)
            overlaps.append(best.values)
            owners.append(best.indices + before)
            difficult.append(there["difficult"][own][best.indices])
        else:
            overlaps.append(torch.full((len(boxes),), -1.0, dtype=torch.float64))
            owners.append(torch.zeros(len(boxes), dtype=torch.int64))
            difficult.append(torch.zeros(len(boxes), dtype=torch.bool))
        scores.append(found["scores"][mine])
        before += len(objects)
    order = torch.cat(scores).argsort(descending=True, stable=True)
    return torch.cat(overlaps)[order], torch.cat(owners)[order], torch.cat(difficult)[order]


def _hits_and_misses(
    overlaps: Tensor, owners: Tensor, difficult: Tensor, least: float
) -> tuple[Tensor, Tensor]:
    """Cumulative numbers (D,) of right and of wrong detections."""
    enough = overlaps >= least
    candidates = (enough & ~difficult).nonzero()[:, 0]
    first = torch.zeros(len(overlaps), dtype=torch.bool)
    taken: set[int] = set()
    for place, owner in zip(candidates.tolist(), owners[candidates].tolist(), strict=True):
        first[place] = owner not in taken
        taken.add(owner)
    wrong = ~first & ~(enough & difficult)
    return first.cumsum(0), wrong.cumsum(0)


def _reduced(hits: Tensor, counted: Tensor, objects: int, rule: Rule) -> float:
    """Average precision in 0..1 from cumulative right and counted detections (D,)."""
    if not len(hits):
        return 0.0
    precision = hits.double() / counted.clamp_min(1)
    falling = precision.flip(0).cummax(0).values.flip(0)
    if rule == "area":
        steps = torch.diff(hits, prepend=hits.new_zeros(1)).double()
        return float((falling * steps).sum() / objects)
    # In integers, because 0.3 is not exact in binary.
    reached = [(10 * hits >= tenth * objects).nonzero()[:, 0] for tenth in range(11)]
    return sum(float(falling[places[0]]) for places in reached if len(places)) / 11
