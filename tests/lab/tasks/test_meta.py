"""A training batch and a balanced one, each with draws of its own."""

from __future__ import annotations

from typing import Any

import torch

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.tasks.long_tailed import LongTailedTask
from batchformer.lab.tasks.meta import WithMeta, close

CPU = torch.device("cpu")


def test_a_balanced_batch_comes_beside_the_training_batch() -> None:
    config = LongTailConfig(name="digits", ratio=50, shots="thirds", meta_batch=30)
    feed = LongTailedTask.load(config, CPU).feed(TrainConfig(batch_size=32), seed=0)
    plain = LongTailedTask.load(LongTailConfig(name="digits", ratio=50), CPU)
    alone = plain.feed(TrainConfig(batch_size=32), seed=0)
    assert isinstance(feed, WithMeta) and feed.per_epoch == alone.per_epoch
    for step in (0, 3, 40):
        batch = feed.batch(step)
        assert set(batch) == {"x", "y", "index", "meta_x", "meta_y"}
        assert batch["meta_y"].bincount(minlength=10).tolist() == [3] * 10
        assert batch["meta_x"].shape == (30, 1, 8, 8)
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


def test_closing_reaches_both_feeds_and_passes_over_those_in_memory() -> None:
    closed = []

    class Open:
        per_epoch = 1

        def batch(self, step: int) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            closed.append(self)

    first, second = Open(), Open()
    close(WithMeta(first, second))
    assert closed == [first, second]
    config = LongTailConfig(name="digits", ratio=50, meta_batch=30)
    close(LongTailedTask.load(config, CPU).feed(TrainConfig(batch_size=32), seed=0))
