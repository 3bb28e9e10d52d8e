"""Scores of a test set, its facts, and what is said about data before training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData, class_counts
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.shots import top1_calibration_error
from batchformer.lab.tasks import base
from batchformer.lab.tasks.base import class_sizes, remarks_in, split_facts
from batchformer.lab.tasks.domains import accuracy, score

STEP = OptimizerStep(TrainConfig(), torch.device("cpu"))


class Echo(Method):
    """Its images are its logits."""

    def predict(self, x: Tensor) -> Tensor:
        return x

    def further_scores(self) -> dict[str, float]:
        return {"said": 1.0}


def test_by_hand_and_without_a_confusion_matrix_of_many_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, said = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 0])
    batches = [(torch.eye(3)[said[part]], labels[part]) for part in (slice(3), slice(3, 4))]
    counts = torch.tensor([500, 50, 5])

    def scored() -> Evaluation:
        config = LongTailConfig()
        return base.evaluate_by_shots(Echo(), STEP, batches, counts, "abc", config)

    metrics = scored().metrics
    wanted = {"all": 50.0, "many": 50.0, "medium": 100.0, "few": 0.0, "said": 1.0}
    assert {name: metrics[name] for name in wanted} == wanted
    figures = scored().figures
    assert figures["confusion"].tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert figures["correct"].tolist() == [True, False, True, False]
    monkeypatch.setattr(base, "MOST_CLASSES_WITH_CONFUSION", 2)
    assert "confusion" not in scored().figures


def test_scores_of_a_domain_against_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(57, 5, generator=draw)
    labels = torch.randint(4, (57,), generator=draw)  # class 4 has no image
    batches = zip(logits.split(10), labels.split(10), strict=True)
    got, loss = score(Echo(), STEP, batches, 5)
    micro = multiclass_accuracy(logits, labels, 5, average="micro")
    assert accuracy(got) == pytest.approx(100 * float(micro), rel=1e-6)
    assert torch.equal(got.confusion, multiclass_confusion_matrix(logits, labels, 5))
    assert loss == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)
    each = multiclass_accuracy(logits, labels, 5, average=None)
    assert got.per_class[:4].tolist() == pytest.approx((100 * each[:4]).tolist())
    assert got.per_class[4].isnan()
    assert torch.equal(got.correct, logits.argmax(1) == labels)


@pytest.mark.parametrize("scores", ["shots", "top", "both"])
def test_the_highest_answers_against_torchmetrics(scores: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 9, generator=draw)
    labels = torch.randint(9, (60,), generator=draw)
    batches = [(logits[:25], labels[:25]), (logits[25:], labels[25:])]
    counts = torch.tensor([500, 400, 300, 60, 50, 40, 9, 5, 1])
    config = LongTailConfig(scores=scores)
    evaluation = base.evaluate_by_shots(Echo(), STEP, batches, counts, "abcdefghi", config)

    def by_torchmetrics(average: Any, top_k: int = 1) -> float:
        value = multiclass_accuracy(logits, labels, num_classes=9, average=average, top_k=top_k)
        return 100 * float(value)

    by_shots = ["all", "many", "medium", "few", "mean_class", "ece", "said"]
    names = {
        "shots": by_shots,
        "top": ["top1", "top5", "mean_class", "ece", "said"],
        "both": [*by_shots[:-1], "top5", "said"],
    }[scores]
    metrics = evaluation.metrics
    assert list(metrics) == names
    assert metrics["mean_class"] == pytest.approx(by_torchmetrics("macro"), rel=1e-5)
    ece = top1_calibration_error(logits.softmax(1).amax(1), logits.argmax(1) == labels)
    assert metrics["ece"] == pytest.approx(ece, rel=1e-5)
    if scores != "shots":
        assert metrics["top5"] == pytest.approx(by_torchmetrics("micro", top_k=5), rel=1e-5)
    assert metrics[names[0]] == pytest.approx(by_torchmetrics("micro"), rel=1e-5)
    assert evaluation.figures["correct"].tolist() == (logits.argmax(1) == labels).tolist()


def test_five_classes_have_no_five_highest_answers() -> None:
    batches = [(torch.eye(5), torch.arange(5))]
    counts, config = torch.full((5,), 7), LongTailConfig(scores="top")
    found = base.evaluate_by_shots(Echo(), STEP, batches, counts, "abcde", config).metrics
    assert list(found) == ["top1", "mean_class", "ece", "said"] and found["top1"] == 100


def test_the_facts_of_a_split() -> None:
    def part(labels: list[int]) -> ImageSplit:
        images = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
        return ImageSplit(images, torch.tensor(labels))

    data = LongTailedData(part([0, 0, 0, 1]), part([0, 1]), ("a", "b"), "tiny")
    assert split_facts(data) == {
        "name": "tiny",
        "split_sha256": data.split_sha256,
        "train_sha256": data.train.sha256,
        "train": 4,
        "test": 2,
        "largest_class": 3,
        "smallest_class": 1,
    }


@pytest.mark.parametrize(("ratio", "shots"), [(100, (35, 35, 30)), (200, (30, 31, 39))])
def test_the_sizes_of_cifar100_lt_in_words(ratio: int, shots: tuple[int, int, int]) -> None:
    counts = torch.tensor(class_counts(500, 100, ratio))
    line = class_sizes(counts, LongTailConfig())
    images, smallest = {100: ("10,847", 5), 200: ("9,502", 2)}[ratio]
    assert line.startswith(f"100 classes, {images} training images: 500 in the largest class, ")
    assert f" {smallest} in the smallest; " in line
    assert line.endswith("; {} many, {} medium, {} few".format(*shots))


def test_sizes_by_thirds_and_without_shots() -> None:
    counts = torch.tensor([9, 5, 4, 1])
    thirds = class_sizes(counts, LongTailConfig(shots="thirds"))
    assert thirds.endswith("; 2 many, 1 medium, 1 few (thirds by training images)")
    assert class_sizes(counts, LongTailConfig(scores="top")).endswith(" 1 in the smallest")


def test_each_remark_and_each_list_is_a_line() -> None:
    assert remarks_in({"train": 5, "remarks": [], "random_vectors": []}) == []
    drawn = [f"word{number}" for number in range(12)]
    lines = remarks_in(
        {
            "remarks": ["one", "two"],
            "words_without_vector": {"FauxFur": ["Faux"], "mid-calf": ["mid", "calf"]},
            "random_vectors": drawn,
        }
    )
    assert lines[:2] == ["one", "two"] and len(lines) == 4
    assert lines[2].endswith("mean: FauxFur (Faux), mid-calf (mid, calf)")
    assert lines[3].endswith("drawn: " + ", ".join(drawn[:10]) + " and 2 more")
