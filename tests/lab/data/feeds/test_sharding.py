"""Which rows are whose: brute force over numbers of ranks, without a process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.feeds import sharding
from batchformer.lab.data.feeds.detection import DetectionFeed
from batchformer.lab.data.feeds.framing import RandomResizedCrop, ResizeCentreCrop
from batchformer.lab.data.feeds.loader import FileFeed, evaluation_batches
from batchformer.lab.data.feeds.memory import FeatureFeed, Feed
from batchformer.lab.data.feeds.order import DomainSteps, Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.feeds.sharding import Share
from batchformer.lab.data.sets.voc import BoxedImage
from batchformer.lab.data.transforms import IMAGENET, Compose, RandomFlip, digits_train
from helpers.data_files import grey_images, noise_files


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """Nothing is sent here, so that a rank may be played."""
    with (
        patch("batchformer.nn.exchange.world_size", lambda group=None: ranks),
        patch("batchformer.nn.exchange.rank", lambda group=None: rank),
        patch.object(sharding, "world_size", lambda: ranks),
        patch.object(sharding, "rank", lambda: rank),
    ):
        yield


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), blocks=st.integers(1, 5), ranks=st.integers(1, 6))
def test_every_row_is_one_rank_s_and_parts_are_near_equal(
    rows: int, blocks: int, ranks: int
) -> None:
    sizes = sharding.block_sizes(rows, blocks)
    assert sum(sizes) == rows
    everyone, counts = [], []
    for rank in range(ranks):
        with as_rank(rank, ranks):
            own = sharding.own_positions(sizes)
        assert own.tolist() == sorted(own.tolist())
        everyone += own.tolist()
        starts = torch.tensor([0, *sizes]).cumsum(0)
        counts.append([int(((own >= a) & (own < b)).sum()) for a, b in pairwise(starts.tolist())])
    assert sorted(everyone) == list(range(rows)), "nothing twice, nothing left out"
    for block in zip(*counts, strict=True):
        assert max(block) - min(block) <= 1 and list(block) == sorted(block, reverse=True)


def test_what_leaves_a_rank_without_a_row_is_refused_in_words() -> None:
    with as_rank(0, 4):
        sharding.require_rows([4, 8])
        with pytest.raises(ValueError, match=r"batch of 3 samples .* 4 ranks.*train.drop-last"):
            sharding.require_rows([8, 3])
        with pytest.raises(ValueError, match=r"cut into 3 blocks.*train.batch-size.*fewer ranks"):
            sharding.require_rows([8], blocks=3)
        with pytest.raises(ValueError, match="batch of 2"):
            Share(Steps(Shuffle(10, 0), 4))
        Share(Steps(Shuffle(10, 0), 4, drop_last=True))
        with pytest.raises(ValueError, match="2 blocks"):
            Share(DomainSteps(torch.arange(20) % 2, groups=2, each=3, seed=0))
        with pytest.raises(ValueError, match="batch of 3"):
            FeatureFeed(torch.eye(5), torch.arange(5), 3, 0)


def test_a_rank_without_a_row_to_score_looks_at_the_first() -> None:
    rows = []
    for rank in range(3):
        with as_rank(rank, 3):
            rows.append(sharding.scored_rows(2))
            assert sharding.part_sizes(2) == [1, 1, 0]
    assert rows == [slice(0, 1), slice(1, 2), slice(0, 1)]
    assert sharding.all_rows(torch.ones(2), 2).tolist() == [1, 1]


def test_parts_of_a_feed_are_the_whole_with_its_augmentation() -> None:
    split, order = grey_images(22), Steps(Shuffle(22, seed=1), 8)
    whole = Feed(split, digits_train(), order, seed=1)
    for accumulate, ranks in ((1, 3), (2, 3), (1, 2)):
        for step in range(4):  # the third has six images
            expected, parts = whole.batch(step), []
            for rank in range(ranks):
                with as_rank(rank, ranks):
                    feed = Feed(split, digits_train(), order, seed=1, accumulate=accumulate)
                    parts.append(feed.batch(step))
            if accumulate == 1:
                for name in ("x", "y", "index"):
                    assert torch.equal(torch.cat([p[name] for p in parts]), expected[name]), name
                assert all("parts" not in part for part in parts)
            else:
                halves = [torch.split(part["index"], list(part["parts"])) for part in parts]
                joined = torch.cat([half[k] for k in range(2) for half in halves])
                assert torch.equal(joined, expected["index"])


def test_each_rank_reads_its_own_files(tmp_path: Path) -> None:
    files = noise_files(tmp_path, [(20, 24)] * 7, classes=3)
    crop, flip = RandomResizedCrop(8), Compose((RandomFlip(), IMAGENET))
    how: dict[str, Any] = {"order": Steps(Shuffle(7, seed=0), 4), "seed": 0, "workers": 0}
    with closing(FileFeed(files, crop, flip, **how)) as feed:
        whole = [feed.batch(step) for step in range(3)]
    middle = ResizeCentreCrop(8, 10)
    scored = [*evaluation_batches(files, middle, IMAGENET, 4, workers=0)]
    parts: list[list[dict[str, Any]]] = []
    seen: list[list[dict[str, Any]]] = []
    for rank in range(3):
        with as_rank(rank, 3), closing(FileFeed(files, crop, flip, **how)) as feed:
            parts.append([feed.batch(step) for step in range(3)])
            seen.append([*evaluation_batches(files, middle, IMAGENET, 4, workers=0, sharded=True)])
    for step, expected in enumerate(whole):
        for name in ("x", "y", "index"):
            got = torch.cat([part[step][name] for part in parts])
            assert torch.equal(got, expected[name]), (step, name)
    for step, expected in enumerate(scored):
        assert all(torch.equal(rank[step]["y"], expected["y"]) for rank in seen)
        own = [rank[step]["x"] for rank in seen]
        assert torch.equal(torch.cat(own), expected["x"])
        assert [len(rows) for rows in own] == ([2, 1, 1] if step == 0 else [1, 1, 1])


def test_features_and_boxes_are_sharded_too() -> None:
    features, labels = torch.eye(9), torch.arange(9)
    whole = FeatureFeed(features, labels, 5, 0, times=2).batch(3)["index"]
    boxed = [
        BoxedImage(Path(f"{n}.png"), torch.ones(n, 4), torch.ones(n).long(), torch.ones(n).bool())
        for n in range(9)
    ]
    order = Steps(Shuffle(9, seed=0), 5, drop_last=True)
    found, read = [], []
    for rank in range(2):
        with as_rank(rank, 2):
            found.append(FeatureFeed(features, labels, 5, 0, times=2).batch(3)["index"])
            feed = DetectionFeed(boxed, (24, 32, 40), 60, order, seed=0)
            read.append(feed.request(2))
    first, second = (torch.split(rows, [3, 3] if len(rows) == 6 else [2, 2]) for rows in found)
    assert torch.equal(torch.cat((first[0], second[0], first[1], second[1])), whole)
    expected = DetectionFeed(boxed, (24, 32, 40), 60, order, seed=0).request(2)
    for name in ("samples", "paths", "shorter", "flip"):
        assert getattr(read[0], name) + getattr(read[1], name) == getattr(expected, name)
    assert len(expected.samples) == read[0].total == read[1].total == 5
    assert sum(expected.samples) == read[0].objects == read[1].objects, "n objects in image n"
