"""The long-tailed task on embedded digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.long_tailed import LongTailedTask

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task() -> LongTailedTask:
    return LongTailedTask.load(LongTailConfig(name="digits", ratio=50, shots="thirds"), CPU)


class Constant(Method):
    """Always says the same class."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer

    def predict(self, x: Tensor) -> Tensor:
        logits = torch.zeros(len(x), 10)
        logits[:, self.answer] = 1.0
        return logits


def test_scores_of_a_constant_answer_by_hand(task: LongTailedTask) -> None:
    mechanics = OptimizerStep(TrainConfig(), CPU)
    evaluation = task.evaluate(Constant(9), mechanics, batch=64)  # the rarest class
    metrics = evaluation.metrics
    assert metrics["all"] == metrics["mean_class"] == pytest.approx(10.0)
    assert metrics["many"] == metrics["medium"] == 0.0 and metrics["few"] == pytest.approx(100 / 3)
    assert next(iter(metrics)) == "all", "the headline comes first"
    figures = evaluation.figures
    assert figures["per_class"].tolist() == [0] * 9 + [100]
    assert figures["correct"].sum() == 50 and figures["correct"].shape == (500,)
    assert figures["confusion"].sum() == 500 and (figures["confusion"].sum(0) > 0).sum() == 1
    assert figures["classes"].dtype.kind == "U"
    assert figures["train_counts"].sum() == len(task.data.train)
    total = sum(np.asarray(value).nbytes for value in figures.values())
    assert total < 5e6


def test_facts_and_feed(task: LongTailedTask) -> None:
    facts = task.facts()
    assert (
        facts["largest_class"] / facts["smallest_class"] >= 50 and len(facts["split_sha256"]) == 64
    )
    batch = task.feed(TrainConfig(batch_size=32), seed=0).batch(0)
    assert batch["x"].shape == (32, 1, 8, 8) and batch["x"].dtype == torch.float32
    assert torch.equal(task.method_options["class_counts"], task.data.train_counts)
