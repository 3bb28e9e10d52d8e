"""Average precision of detections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Boxes = Mapping[str, Tensor]


@dataclass(frozen=True)
class AveragePrecision:
    """Means over classes and what they are of, in percent.

    Args:
        ap: mean over thresholds .50, .55, ..., .95 of the overlap (IoU).
        ap50: at .50.
        ap75: at .75.
        by_class: (K,) `ap` of each class; NaN of a class without an object to be found.
    """

    ap: float
    ap50: float
    ap75: float
    by_class: Tensor


def average_precision(pairs: Iterable[tuple[Boxes, Boxes]], classes: int) -> AveragePrecision:
    """COCO's average precision, by torchmetrics.

    Precision is read off at 101 values of recall, and the 100 most certain detections of an image
    count. A difficult object is treated as a crowd of COCO's: it is not missed where nothing is
    found, and what is found within it is neither right nor wrong, however often.

    The numbers of papers on Pascal VOC, with the same names, come from detectron2's evaluation,
    which differs: precision is read off at 11 values of recall for VOC2007 (the area under the
    curve for other years), boxes include their last pixel, detections are not limited in number,
    and one is forgiven for a difficult object only if it overlaps with it enough (IoU), not if it
    lies within it.

    Args:
        pairs: of each image what was found, ``boxes`` (n, 4), ``labels`` (n,) and ``scores`` (n,),
            and what is there, ``boxes`` (m, 4), ``labels`` (m,) and ``difficult`` (m,).
        classes: K; labels are 0..K-1.
    """
    metric = _metric()
    for found, there in pairs:
        metric.update(
            [{name: found[name].cpu() for name in ("boxes", "labels", "scores")}],
            [
                {
                    "boxes": there["boxes"].cpu(),
                    "labels": there["labels"].cpu(),
                    "iscrowd": there["difficult"].cpu().long(),
                }
            ],
        )
    scores = metric.compute()
    by_class = torch.full((classes,), torch.nan)
    for label, value in zip(
        scores["classes"].reshape(-1).tolist(),
        scores["map_per_class"].reshape(-1).tolist(),
        strict=True,
    ):
        by_class[label] = 100 * value if value >= 0 else torch.nan  # -1: nothing to be found
    ap, ap50, ap75 = (100 * float(scores[name]) for name in ("map", "map_50", "map_75"))
    return AveragePrecision(ap, ap50, ap75, by_class)


def _metric() -> Any:
    try:
        from torchmetrics.detection import MeanAveragePrecision

        return MeanAveragePrecision(class_metrics=True, backend="pycocotools")
    except (ImportError, ModuleNotFoundError) as error:
        raise ImportError(
            "Average precision is measured by torchmetrics and pycocotools: pip install "
            "'batchformer[lab,detection]'"
        ) from error
