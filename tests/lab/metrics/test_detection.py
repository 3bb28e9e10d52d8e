from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchformer.lab.metrics.detection import (
    AveragePrecision,
    Rule,
    average_precision,
    voc_average_precision,
)

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


def test_nothing_found() -> None:
    pair = (NOTHING, there([A, B], [0, 1]))
    for made in (scores(pair), voc_average_precision([pair], 2, "eleven")):
        assert (made.ap, made.ap50, made.ap75) == (0, 0, 0) and made.by_class.tolist() == [0, 0]


@pytest.mark.parametrize("others", [([], [], []), ([B, C], [1, 1], [True, True])], ids=str)
def test_a_class_without_objects_to_find_is_left_out_of_the_mean(
    others: tuple[list[list[float]], list[int], list[bool]],
) -> None:
    boxes, labels, difficult = others
    objects = there([A, *boxes], [0, *labels], [False, *difficult])
    made = scores((found([A, B], [0, 1], [0.9, 0.8]), objects), classes=3)
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


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics.detection", None)
    with pytest.raises(ImportError, match=r"pip install 'batchformer\[lab,detection\]'"):
        scores((NOTHING, there([A], [0])))


def overlap(one: Array, other: Array) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(both / (sum(areas) - both))


def coco(pairs: list[Pair], label: int, least: float, recalls: Array) -> float:
    """Mean over recalls of the best precision from there on, detection by detection.

    A detection gets the object that it overlaps with most among those that are still free.
    """
    ranked: list[tuple[float, bool]] = []
    objects = 0
    for detections, truth in pairs:
        boxes = truth["boxes"][truth["labels"] == label].double().numpy()
        objects += len(boxes)
        mine = detections["labels"] == label
        order = detections["scores"][mine].argsort(descending=True)
        free: set[Any] = set(range(len(boxes)))
        for box, score in zip(
            detections["boxes"][mine][order].double().numpy(),
            detections["scores"][mine][order].tolist(),
            strict=True,
        ):
            best = max(free, key=lambda i: overlap(box, boxes[i]), default=None)
            right = best is not None and overlap(box, boxes[best]) >= least
            free -= {best} if right else set()
            ranked.append((score, right))
    ranked.sort(key=lambda entry: -entry[0])
    hits = np.cumsum([right for _, right in ranked])
    recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
    return float(np.mean([precision[recall >= least].max(initial=0) for least in recalls]))


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
    table = [[coco(pairs, label, least, recalls) for least in THRESHOLDS] for label in range(3)]
    expected = 100 * np.mean(table, axis=0)
    assert measured == pytest.approx((expected.mean(), expected[0], expected[5]), abs=1e-3)
    assert 20 < made.ap < 80  # neither extreme


def devkit(pairs: list[Pair], label: int, least: Fraction, rule: Rule) -> Fraction | None:
    """VOC's evaluation, detection by detection, in exact fractions; boxes have whole corners."""
    objects, lines = 0, []
    taken: set[tuple[int, int]] = set()
    for image, (detections, truth) in enumerate(pairs):
        objects += int((~truth["difficult"][truth["labels"] == label]).sum())
        mine = detections["labels"] == label
        boxes, sure = detections["boxes"][mine].long().tolist(), detections["scores"][mine].tolist()
        lines += [(score, image, box) for box, score in zip(boxes, sure, strict=True)]
    if not objects:
        return None
    right = wrong = 0
    points: list[tuple[Fraction, Fraction]] = []
    for _, image, box in sorted(lines, key=lambda line: -line[0]):
        truth = pairs[image][1]
        most, owner = Fraction(-1), -1
        for i, other in enumerate(truth["boxes"].long().tolist()):
            if int(truth["labels"][i]) != label:
                continue
            wide = min(box[2], other[2]) - max(box[0], other[0])
            high = min(box[3], other[3]) - max(box[1], other[1])
            both = max(wide, 0) * max(high, 0)
            total = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
            if Fraction(both, total - both) > most:
                most, owner = Fraction(both, total - both), i
        if most < least:
            wrong += 1
        elif truth["difficult"][owner]:
            continue
        elif (image, owner) in taken:
            wrong += 1
        else:
            taken.add((image, owner))
            right += 1
        points.append((Fraction(right, objects), Fraction(right, right + wrong)))
    if rule == "eleven":
        tenths = [Fraction(tenth, 10) for tenth in range(11)]
        best = [max([p for r, p in points if r >= tenth], default=Fraction(0)) for tenth in tenths]
        return Fraction(sum(best), 11)
    recalls = sorted({recall for recall, _ in points})
    total, before = Fraction(0), Fraction(0)
    for recall in recalls:
        total += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    return total


def crowded(seed: int) -> list[Pair]:
    """Boxes with whole corners, some of which overlap by exactly a half; a third is difficult."""
    stream = np.random.default_rng(seed)
    pairs = []
    for _ in range(15):
        count = int(stream.integers(0, 5))
        corner, side = stream.integers(0, 12, (count, 2)), stream.choice([8, 10, 20], (count, 2))
        boxes = np.concatenate((corner, corner + side), 1)
        labels = stream.integers(0, 3, count)
        chosen = stream.integers(0, count, 2 * count) if count else np.zeros(0, int)
        shifted = boxes[chosen] + stream.integers(-1, 2, (len(chosen), 4))
        halved = stream.random(len(chosen)) < 0.2
        shifted[halved] = boxes[chosen][halved]
        shifted[halved, 2] = (shifted[halved, 0] + shifted[halved, 2]) // 2
        names = np.where(stream.random(len(chosen)) < 0.1, 0, labels[chosen])
        hard = (stream.random(count) < 1 / 3).tolist()
        sure = stream.random(len(chosen)).tolist()
        truth = there(boxes.tolist(), labels.tolist(), hard)
        pairs.append((found(shifted.tolist(), names.tolist(), sure), truth))
    return pairs


@pytest.mark.parametrize("rule", ["eleven", "area"])
@pytest.mark.parametrize("seed", range(6))
def test_vocs_own_rule_against_brute_force(seed: int, rule: Rule) -> None:
    pairs = crowded(seed)
    made = voc_average_precision(pairs, 4, rule)
    table = [
        [devkit(pairs, label, Fraction(50 + 5 * i, 100), rule) for i in range(10)]
        for label in range(4)
    ]
    scored = np.array([[float(value) for value in row if value is not None] for row in table[:3]])
    assert table[3] == [None] * 10 and made.by_class[3].isnan()
    assert made.by_class[:3].tolist() == pytest.approx((100 * scored.mean(1)).tolist())
    expected = 100 * scored.mean(0)
    measured = (made.ap, made.ap50, made.ap75)
    assert measured == pytest.approx((expected.mean(), expected[0], expected[5]))
    assert 5 < made.ap50 < 95  # neither extreme


def test_voc_forgives_a_difficult_object_only_where_the_overlap_is_enough() -> None:
    """COCO forgives whatever lies within a crowd; VOC goes by the overlap."""
    inside = [20.0, 20.0, 30.0, 30.0]
    pairs = [(found([inside, A], [0, 0], [0.9, 0.8]), there([A, B], [0, 0], [False, True]))]
    assert average_precision(pairs, 1).ap50 == pytest.approx(100)
    assert voc_average_precision(pairs, 1, "area").ap50 == pytest.approx(50)


def test_more_than_a_hundred_detections_of_an_image_count_by_vocs_rule() -> None:
    many = [[200.0 + i, 0.0, 201.0 + i, 9.0] for i in range(100)]
    pairs = [(found([*many, A], [0] * 101, [0.9] * 100 + [0.1]), there([A], [0]))]
    assert average_precision(pairs, 1).ap50 == 0
    assert voc_average_precision(pairs, 1, "area").ap50 == pytest.approx(100 / 101)
