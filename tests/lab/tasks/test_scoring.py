"""Scores of a test set, and which figures are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.metrics.shots import expected_calibration_error
from batchformer.lab.tasks import scoring


class Echo(Method):
    """Its images are its logits."""

    def predict(self, x: Tensor) -> Tensor:
        return x

    def remarks(self) -> dict[str, float]:
        return {"said": 1.0}


def test_by_hand_and_without_a_confusion_matrix_of_many_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, said = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 0])
    batches = [(torch.eye(3)[said[part]], labels[part]) for part in (slice(3), slice(3, 4))]
    mechanics = OptimizerStep(TrainConfig(), torch.device("cpu"))
    counts = torch.tensor([500, 50, 5])

    def scored() -> Evaluation:
        config = LongTailConfig()
        return scoring.evaluate_by_shots(Echo(), mechanics, batches, counts, "abc", config)

    metrics = scored().metrics
    assert {k: metrics[k] for k in ("all", "many", "medium", "few", "said")} == {
        "all": 50.0,
        "many": 50.0,
        "medium": 100.0,
        "few": 0.0,
        "said": 1.0,
    }
    figures = scored().figures
    assert figures["confusion"].tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert figures["correct"].tolist() == [True, False, True, False]
    monkeypatch.setattr(scoring, "MOST_CLASSES_WITH_CONFUSION", 2)
    assert "confusion" not in scored().figures


@pytest.mark.parametrize("scores", ["shots", "top", "both"])
def test_the_highest_answers_against_torchmetrics(scores: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 9, generator=draw)
    labels = torch.randint(9, (60,), generator=draw)
    batches = [(logits[:25], labels[:25]), (logits[25:], labels[25:])]
    counts = torch.tensor([500, 400, 300, 60, 50, 40, 9, 5, 1])
    mechanics = OptimizerStep(TrainConfig(), torch.device("cpu"))
    config = LongTailConfig(scores=scores)
    evaluation = scoring.evaluate_by_shots(
        Echo(), mechanics, batches, counts, list("abcdefghi"), config
    )

    def accuracy(average: Any, top_k: int = 1) -> float:
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
    assert metrics["mean_class"] == pytest.approx(accuracy("macro"), rel=1e-5)
    ece = expected_calibration_error(logits.softmax(1), labels)
    assert metrics["ece"] == pytest.approx(ece, rel=1e-5)
    if scores != "shots":
        assert metrics["top5"] == pytest.approx(accuracy("micro", top_k=5), rel=1e-5)
    assert metrics[names[0]] == pytest.approx(accuracy("micro"), rel=1e-5)
    assert evaluation.figures["correct"].tolist() == (logits.argmax(1) == labels).tolist()


def test_five_classes_have_no_five_highest_answers() -> None:
    batches = [(torch.eye(5), torch.arange(5))]
    mechanics, counts = OptimizerStep(TrainConfig(), torch.device("cpu")), torch.full((5,), 7)
    config = LongTailConfig(scores="top")
    found = scoring.evaluate_by_shots(Echo(), mechanics, batches, counts, "abcde", config).metrics
    assert list(found) == ["top1", "mean_class", "ece", "said"] and found["top1"] == 100
