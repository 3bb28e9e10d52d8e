"""Batches of features are a function of the seed and the step."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.data.feeds.memory import FeatureFeed

X, Y = torch.arange(30.0).view(10, 3), torch.arange(10)


def test_each_batch_of_a_step_has_no_row_twice() -> None:
    feed = FeatureFeed(X, Y, batch_size=4, seed=1, times=3)
    assert feed.per_epoch == 3
    for step in range(5):
        batch = feed.batch(step)
        for part in batch["index"].split(4):
            assert len(part.unique()) == 4
        assert torch.equal(batch["x"], X[batch["index"]])
        assert torch.equal(batch["y"], batch["index"])


def test_a_function_of_seed_and_step() -> None:
    first, again = (FeatureFeed(X, Y, 4, seed=1, times=2) for _ in range(2))
    for step in (7, 0, 7):
        assert torch.equal(first.batch(step)["index"], again.batch(step)["index"])
    assert not torch.equal(first.batch(0)["index"], first.batch(1)["index"])
    other = FeatureFeed(X, Y, 4, seed=2, times=2)
    assert not torch.equal(first.batch(0)["index"], other.batch(0)["index"])


def test_every_row_comes_equally_often() -> None:
    feed = FeatureFeed(X, Y, 4, seed=0, times=2)
    drawn = torch.cat([feed.batch(step)["index"] for step in range(500)]).bincount(minlength=10)
    assert (drawn.double() / 400 - 1).abs().max() < 0.15


def test_more_than_there_is() -> None:
    feed = FeatureFeed(X, Y, batch_size=99, seed=0)
    assert feed.per_epoch == 1 and feed.batch(3)["index"].sort().values.tolist() == list(range(10))
    with pytest.raises(ValueError, match="no batch"):
        FeatureFeed(X[:0], Y[:0], 4, 0)
