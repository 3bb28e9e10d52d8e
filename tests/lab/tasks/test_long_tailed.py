"""The long-tailed task on digits: scores, feeds, and the balanced batch beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import ClassBalanced
from batchformer.lab.data.transforms import digits_train
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.base import load
from batchformer.lab.tasks.long_tailed import LongTailedTask
from batchformer.nn.randomness import seed_for

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
    optimizer_step = OptimizerStep(TrainConfig(), CPU)
    evaluation = task.evaluate(Constant(9), optimizer_step)  # the rarest class
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


def test_a_balanced_batch_comes_beside_the_training_batch() -> None:
    config = LongTailConfig(name="digits", ratio=50, shots="thirds", meta_batch=30)
    feed = LongTailedTask.load(config, CPU).feed(TrainConfig(batch_size=32), seed=0)
    plain = LongTailedTask.load(LongTailConfig(name="digits", ratio=50), CPU)
    alone = plain.feed(TrainConfig(batch_size=32), seed=0)
    assert feed.per_epoch == alone.per_epoch
    part = plain.data.train
    balanced = Steps(ClassBalanced(part.labels, 0, stream=1), 30, drop_last=True)
    beside = Feed(part, digits_train(), balanced, seed_for(0, "augmentation", 1))
    for step in (0, 3, 40):
        batch = feed.batch(step)
        assert torch.equal(batch["meta_x"], beside.batch(step)["x"])
        assert set(batch) == {"x", "y", "index", "meta_x", "meta_y"}
        assert batch["meta_y"].bincount(minlength=10).tolist() == [3] * 10
        expected = alone.batch(step)
        assert all(torch.equal(batch[key], expected[key]) for key in expected)


def test_a_meta_batch_is_no_larger_than_the_data() -> None:
    config = LongTailConfig(name="digits", ratio=50, meta_batch=10_000)
    task = LongTailedTask.load(config, CPU)
    batch = task.feed(TrainConfig(batch_size=32), seed=0).batch(0)
    assert len(batch["meta_y"]) == len(task.data.train)


def test_the_sampler_and_the_second_view_of_a_task() -> None:
    config = LongTailConfig(name="digits", ratio=50, sampler="class_balanced", augment="paco")
    batch = LongTailedTask.load(config, CPU).feed(TrainConfig(batch_size=40), seed=0).batch(1)
    assert batch["y"].bincount(minlength=10).tolist() == [4] * 10
    assert batch["view2"].shape == batch["x"].shape
    assert not torch.equal(batch["view2"], batch["x"])


def test_mates_are_augmented_apart() -> None:
    config = LongTailConfig(name="digits", ratio=50, sampler="mates")
    batch = LongTailedTask.load(config, CPU).feed(TrainConfig(batch_size=40), seed=0).batch(1)
    assert torch.equal(batch["y"][::2], batch["y"][1::2])
    task = LongTailedTask.load(LongTailConfig(name="digits", ratio=124, sampler="mates"), CPU)
    assert task.data.train_counts[9] == 1
    feed = task.feed(TrainConfig(batch_size=len(task.data.train)), seed=0)
    own = [batch["x"][batch["y"] == 9] for batch in (feed.batch(0), feed.batch(1))]
    ((first, second),) = (images for images in own if len(images))
    assert not torch.equal(first, second), "an image beside itself"


def test_images_in_memory_and_from_files(tmp_path: Path) -> None:
    assert isinstance(load(LongTailConfig(name="digits", ratio=50), CPU), LongTailedTask)
    files = LongTailConfig(name="imagenet_lt", augment="jitter", root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="ImageNet-LT not found"):
        load(files, CPU)
