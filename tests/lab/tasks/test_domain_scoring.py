"""Scores of a part against torchmetrics and by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_confusion_matrix,
)

from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.domains import score


class Given(Method):
    """Logits are the images themselves."""

    def predict(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def test_against_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(57, 5, generator=draw)
    labels = torch.randint(4, (57,), generator=draw)  # class 4 has no image
    batches = zip(logits.view(57, 5, 1, 1).split(10), labels.split(10), strict=True)
    got = score(Given(), OptimizerStep(TrainConfig(), torch.device("cpu")), batches, 5)
    micro = multiclass_accuracy(logits, labels, 5, average="micro")
    assert got.accuracy == pytest.approx(100 * float(micro), rel=1e-6)
    assert torch.equal(got.confusion, multiclass_confusion_matrix(logits, labels, 5))
    assert got.loss == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)
    each = multiclass_accuracy(logits, labels, 5, average=None)
    assert got.per_class[:4].tolist() == pytest.approx((100 * each[:4]).tolist())
    assert got.per_class[4].isnan()
    assert got.mean_class == pytest.approx(100 * float(each[:4].mean()))
    assert torch.equal(got.correct, logits.argmax(1) == labels)


def test_nothing_to_score() -> None:
    with pytest.raises(ValueError, match="no image"):
        score(Given(), OptimizerStep(TrainConfig(), torch.device("cpu")), [], 5)
