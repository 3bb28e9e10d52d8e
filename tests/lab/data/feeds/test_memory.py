"""Batches in memory are a function of the step; feeds built on others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.feeds.memory import ExtendedFeed, FeatureFeed, Feed, close
from batchformer.lab.data.feeds.order import DomainSteps, Order, Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.transforms import digits_train
from batchformer.nn.randomness import generator
from helpers.data_files import grey_images

SPLIT = grey_images(23, classes=5)

SHUFFLED = Steps(Shuffle(23, seed=0), 8)
DOMAINS = DomainSteps(torch.arange(23) % 2, groups=2, each=3, seed=5, per_epoch=10)


@pytest.mark.parametrize("order", [SHUFFLED, DOMAINS])
@pytest.mark.parametrize("two_views", [False, True])
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_batch_is_what_its_parts_make(chunk: int, two_views: bool, order: Order) -> None:
    """Samples by the order, random numbers by the step; each view has columns of its own."""
    view = digits_train()
    source = Feed(SPLIT, view, order, 0, chunk=chunk, second=view if two_views else None)
    assert source.per_epoch == order.per_epoch
    for step in (0, 3, 25, 2):
        torch.manual_seed(step)  # the global generator plays no part
        batch, rows = source.batch(step), order.index(step)
        assert torch.equal(batch["index"], rows) and torch.equal(batch["y"], SPLIT.labels[rows])
        draw = generator(0, "augmentation", step)
        u = torch.rand(len(rows), 2 * (1 + two_views), dtype=torch.float64, generator=draw)
        assert torch.equal(batch["x"], view(SPLIT.x[rows], u[:, :2]))
        if two_views:
            assert torch.equal(batch["view2"], view(SPLIT.x[rows], u[:, 2:]))
        batch["x"] = None  # what a user does to a batch stays with that user
        assert source.batch(step)["x"] is not None


@settings(max_examples=12)
@given(chunk=st.integers(2, 9), steps=st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_batches_do_not_depend_on_what_is_augmented_together(chunk: int, steps: list[int]) -> None:
    alone, together = (Feed(SPLIT, digits_train(), SHUFFLED, 0, chunk=size) for size in (1, chunk))
    for step in steps:
        got, expected = together.batch(step), alone.batch(step)
        assert all(torch.equal(got[key], expected[key]) for key in expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_streams_share_a_feed() -> None:
    shared = Feed(SPLIT, digits_train(), SHUFFLED, 0, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    sums: list[list[torch.Tensor]] = [[] for _ in streams]
    for step in range(200):
        for stream, kept in zip(streams, sums, strict=True):
            with torch.cuda.stream(stream):
                kept.append(shared.batch(step)["x"].double().sum())
    torch.cuda.synchronize()
    alone = Feed(SPLIT, digits_train(), SHUFFLED, 0)
    expected = [float(alone.batch(step)["x"].double().sum()) for step in range(200)]
    for kept in sums:
        assert [float(total) for total in kept] == pytest.approx(expected)


X, Y = torch.arange(30.0).view(10, 3), torch.arange(10)


def test_batches_of_features_are_random_rows_without_repeats() -> None:
    first, again = (FeatureFeed(X, Y, 4, seed=1, times=3) for _ in range(2))
    assert first.per_epoch == 3
    for step in (7, 0, 7):
        batch = first.batch(step)
        assert all(len(part.unique()) == 4 for part in batch["index"].split(4))
        assert torch.equal(batch["x"], X[batch["index"]])
        assert torch.equal(batch["y"], batch["index"])
        assert torch.equal(batch["index"], again.batch(step)["index"])
    zero = first.batch(0)["index"]
    for other in (first.batch(1), FeatureFeed(X, Y, 4, seed=2, times=3).batch(0)):
        assert not torch.equal(zero, other["index"])
    drawn = torch.cat([first.batch(step)["index"] for step in range(400)]).bincount(minlength=10)
    assert (drawn.double() / 480 - 1).abs().max() < 0.15, "every row comes equally often"


def test_more_features_than_there_are() -> None:
    feed = FeatureFeed(X, Y, batch_size=99, seed=0)
    assert feed.per_epoch == 1 and feed.batch(3)["index"].sort().values.tolist() == list(range(10))
    with pytest.raises(ValueError, match="no batch"):
        FeatureFeed(X[:0], Y[:0], 4, 0)


# Feeds built on others.


class Open:
    """A feed with workers; its batch is its step."""

    per_epoch = 9

    def __init__(self) -> None:
        self.closed = 0

    def batch(self, step: int) -> dict[str, Any]:
        return {"x": step, "y": -step}

    def close(self) -> None:
        self.closed += 1


def test_a_feed_with_more_in_its_batches() -> None:
    first, second, in_memory = Open(), Open(), Feed(SPLIT, digits_train(), SHUFFLED, 0)
    feed = ExtendedFeed(
        first,
        lambda batch, step: {"y": 2 * batch["y"], "other": second.batch(step + 1)["x"]},
        *(second, in_memory),
    )
    assert feed.per_epoch == 9 and feed.batch(4) == {"x": 4, "y": -8, "other": 5}
    close(feed)  # a feed in memory has nothing to close
    assert (first.closed, second.closed) == (1, 1)
