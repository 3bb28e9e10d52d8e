"""Scores of a test set, and which figures are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from batchformer.engine.config import TrainConfig
from batchformer.engine.fit import Evaluation
from batchformer.engine.mechanics import Mechanics
from batchformer.engine.method import Method
from batchformer.tasks import scoring
from batchformer.tasks.config import LongTailConfig


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
    mechanics = Mechanics(TrainConfig(), torch.device("cpu"))
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
