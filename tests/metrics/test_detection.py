from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchformer.metrics.detection import AveragePrecision, average_precision

Array = NDArray[np.float64]
Pair = tuple[dict[str, Tensor], dict[str, Tensor]]
THRESHOLDS = np.arange(10) * 0.05 + 0.5


def found(boxes: list[list[float]], labels: list[int], scores: list[float]) -> dict[str, Tensor]:
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "scores": torch.tensor(scores, dtype=torch.float32),
    }


def there(
    boxes: list[list[float]], labels: list[int], difficult: list[bool] | None = None
) -> dict[str, Tensor]:
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "difficult": torch.tensor(difficult or [False] * len(labels), dtype=torch.bool),
    }


NOTHING = found([], [], [])
A, B, C = [0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 60.0, 50.0], [100.0, 0.0, 150.0, 60.0]


def scores(*pairs: Pair, classes: int = 2) -> AveragePrecision:
    return average_precision(pairs, classes)


def test_all_found() -> None:
    made = scores(
        (found([A, B], [0, 1], [0.9, 0.2]), there([A, B], [0, 1])), (NOTHING, there([], []))
    )
    assert (made.ap, made.ap50, made.ap75) == pytest.approx((100, 100, 100))
    assert made.by_class.tolist() == pytest.approx([100, 100])


def test_nothing_found() -> None:
    made = scores((NOTHING, there([A, B], [0, 1])))
    assert (made.ap, made.ap50, made.ap75) == (0, 0, 0) and made.by_class.tolist() == [0, 0]


def test_another_class_or_another_place_is_wrong() -> None:
    assert scores((found([A], [1], [0.9]), there([A], [0]))).ap == 0
    assert scores((found([B], [0], [0.9]), there([A], [0]))).ap == 0


def test_the_overlap_decides() -> None:
    """IoU 62 / 100: enough at .50, .55 and .60."""
    made = scores((found([[0, 0, 10, 6.2]], [0], [0.9]), there([A], [0])))
    assert (made.ap, made.ap50, made.ap75) == pytest.approx((30, 100, 0))


def test_a_class_without_objects_is_left_out_of_the_mean() -> None:
    made = scores((found([A, B], [0, 1], [0.9, 0.8]), there([A], [0])), classes=3)
    assert made.ap == pytest.approx(100)
    assert made.by_class[0] == pytest.approx(100) and made.by_class[1:].isnan().all()


def test_a_difficult_object_is_neither_missed_nor_held_against_what_finds_it() -> None:
    objects = there([A, B], [0, 0], [False, True])
    missed = scores((found([A], [0], [0.3]), objects))
    assert missed.ap == pytest.approx(100)
    both = scores((found([A, B, B], [0, 0, 0], [0.3, 0.9, 0.8]), objects))
    assert both.ap == pytest.approx(100)
    # The same without the mark: one object is missed, and one of three is a repetition.
    easy = there([A, B], [0, 0])
    assert scores((found([A], [0], [0.3]), easy)).ap == pytest.approx(100 * 51 / 101)
    assert scores((found([A, B, B], [0, 0, 0], [0.3, 0.9, 0.8]), easy)).ap < 100
    elsewhere = scores((found([A, C], [0, 0], [0.3, 0.9]), objects))
    assert elsewhere.ap == pytest.approx(50)


def test_a_class_of_difficult_objects_alone_is_not_scored() -> None:
    made = scores(
        (found([A, B], [0, 1], [0.9, 0.8]), there([A, B, C], [0, 1, 1], [False, True, True]))
    )
    assert made.ap == pytest.approx(100) and made.by_class[1].isnan()


def overlap(one: Array, other: Array) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(both / (sum(areas) - both))


def curve(pairs: list[Pair], label: int, least: float, of_voc: bool) -> tuple[Array, Array]:
    """Recall and precision after each detection of a class, the most certain first.

    COCO gives an object to a detection that overlaps with it most among those still free; VOC
    counts a detection as wrong if the object that it overlaps with most is taken.
    """
    ranked: list[tuple[float, bool]] = []
    objects = 0
    for detections, truth in pairs:
        boxes = truth["boxes"][truth["labels"] == label].double().numpy()
        objects += len(boxes)
        mine = detections["labels"] == label
        order = detections["scores"][mine].argsort(descending=True)
        free: set[int | None] = set(range(len(boxes)))
        for box, score in zip(
            detections["boxes"][mine][order].double().numpy(),
            detections["scores"][mine][order].tolist(),
            strict=True,
        ):
            candidates = (
                range(len(boxes)) if of_voc else [i for i in range(len(boxes)) if i in free]
            )
            best = max(candidates, key=lambda i: overlap(box, boxes[i]), default=None)
            right = best is not None and overlap(box, boxes[best]) >= least and best in free
            free -= {best} if right else set()
            ranked.append((score, right))
    ranked.sort(key=lambda entry: -entry[0])
    hits = np.cumsum([right for _, right in ranked])
    return hits / objects, hits / np.arange(1, len(hits) + 1)


def at_recalls(recalls: Array) -> Callable[[Array, Array], float]:
    """The mean over recalls of the best precision from there on."""

    def mean(recall: Array, precision: Array) -> float:
        return float(np.mean([precision[recall >= least].max(initial=0) for least in recalls]))

    return mean


def area(recall: Array, precision: Array) -> float:
    """Under the curve, once precision never rises again."""
    total, before = 0.0, 0.0
    for value in np.unique(recall):
        total += (value - before) * precision[recall >= value].max()
        before = value
    return total


def brute_force(
    pairs: list[Pair], summary: Callable[[Array, Array], float], of_voc: bool
) -> tuple[float, ...]:
    table = [
        [summary(*curve(pairs, label, least, of_voc)) for least in THRESHOLDS] for label in range(3)
    ]
    by_threshold = 100 * np.mean(table, axis=0)
    return float(by_threshold.mean()), float(by_threshold[0]), float(by_threshold[5])


def drawn(seed: int) -> list[Pair]:
    """40 images with objects, most of them found roughly, and inventions."""
    stream = np.random.default_rng(seed)
    pairs = []
    for _ in range(40):
        count = int(stream.integers(1, 5))
        corner, side = stream.uniform(0, 80, (count, 2)), stream.uniform(10, 60, (count, 2))
        boxes = np.concatenate((corner, corner + side), 1)
        labels = stream.integers(0, 3, count)
        shifted = boxes + stream.normal(0, 2.5, (count, 4))
        kept = stream.random(count) < 0.85
        invented = int(stream.integers(0, 3))
        wrong = stream.uniform(0, 80, (invented, 2))
        wrong = np.concatenate((wrong, wrong + stream.uniform(10, 60, (invented, 2))), 1)
        every = np.concatenate((shifted[kept], wrong))
        names = np.concatenate((labels[kept], stream.integers(0, 3, invented)))
        sure = np.concatenate((stream.beta(3, 2, int(kept.sum())), stream.beta(2, 3, invented)))
        pairs.append(
            (
                found(every.tolist(), names.tolist(), sure.tolist()),
                there(boxes.tolist(), labels.tolist()),
            )
        )
    return pairs


@pytest.mark.parametrize("seed", [0, 1])
def test_against_brute_force(seed: int) -> None:
    pairs = drawn(seed)
    made: Any = average_precision(pairs, 3)
    measured = (made.ap, made.ap50, made.ap75)
    # In float32, as torchmetrics has them: a recall of exactly 0.29 is above or below.
    recalls = torch.linspace(0, 1, 101).double().numpy()
    coco = brute_force(pairs, at_recalls(recalls), of_voc=False)
    assert measured == pytest.approx(coco, abs=1e-3)
    assert 20 < made.ap < 80  # neither extreme
    # VOC's own: a little different, since recall is cut otherwise, and not by much.
    assert measured == pytest.approx(brute_force(pairs, area, of_voc=True), abs=2)
    eleven = brute_force(pairs, at_recalls(np.linspace(0, 1, 11)), of_voc=True)
    assert measured == pytest.approx(eleven, abs=6)


def test_the_three_ways_agree_at_the_extremes() -> None:
    pairs = [(found([A, B], [0, 0], [0.9, 0.8]), there([A, B], [0, 0]))]
    for summary in (area, at_recalls(np.linspace(0, 1, 11)), at_recalls(np.linspace(0, 1, 101))):
        assert summary(*curve(pairs, 0, 0.5, of_voc=True)) == pytest.approx(1)
