"""Each domain is split by itself, and all of it is hashed."""

from __future__ import annotations

import hashlib
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.sets.domains import DomainSplit, split_domain

SIZES = {"photo": 40, "art": 50, "sketch": 61}


@settings(max_examples=40)
@given(st.integers(0, 300), st.integers(0, 99), st.integers(0, 2**31), st.integers(0, 5))
def test_rows_are_kept_or_held(count: int, percent: int, seed: int, number: int) -> None:
    kept, held = split_domain(count, percent / 100, seed, number)
    assert len(held) == int(Decimal(percent) / 100 * count)
    for rows in (kept, held):
        assert rows.dtype == torch.int64 and rows.tolist() == sorted(rows.tolist())
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(count))


def test_seeds_and_domains_draw_differently() -> None:
    def held(seed: int, number: int) -> list[int]:
        return split_domain(100, 0.2, seed, number)[1].tolist()

    assert held(0, 0) == held(0, 0)
    assert len({tuple(held(seed, number)) for seed in range(3) for number in range(4)}) == 12


def test_every_row_is_held_as_often_as_the_others() -> None:
    times = torch.zeros(20)
    for seed in range(200):
        times[split_domain(20, 0.25, seed, 0)[1]] += 1
    # 200 draws with probability 1/4: a standard deviation of 6.1 around 50.
    assert (times - 50).abs().max() < 4 * 6.1


def test_sources_and_target() -> None:
    split = DomainSplit(SIZES, ("photo", "sketch"), "art", seed=3)
    assert list(split.train) == list(split.val) == ["photo", "sketch"]
    for number, domain in ((1, "photo"), (2, "sketch")):
        kept, held = split_domain(SIZES[domain], 0.2, 3, number)
        assert torch.equal(split.train[domain], kept) and torch.equal(split.val[domain], held)
    assert torch.equal(split.target_in, split_domain(50, 0.2, 3, 0)[0])
    assert split.target_all.tolist() == list(range(50))


def test_a_domain_is_split_the_same_whatever_its_part() -> None:
    first = DomainSplit(SIZES, ("photo", "sketch"), "art", seed=0)
    second = DomainSplit(SIZES, ("art",), "photo", seed=0)
    assert torch.equal(first.target_in, second.train["art"])
    assert torch.equal(second.target_in, first.train["photo"])


def test_the_hash_covers_every_row() -> None:
    split = DomainSplit(SIZES, ("photo",), "art", seed=3, fraction=0.1)
    words: list[list[int]] = []
    for number, kept, held in (
        (1, split.train["photo"], split.val["photo"]),
        (0, split.target_in, torch.from_numpy(np.setdiff1d(split.target_all, split.target_in))),
    ):
        words += [[number, len(kept)], kept.tolist(), [len(held)], held.tolist()]
    expected = hashlib.sha256(np.concatenate(words).astype("<i8").tobytes()).hexdigest()
    assert split.split_sha256 == expected
    others = [
        DomainSplit(SIZES, ("photo",), "art", seed=4, fraction=0.1),
        DomainSplit(SIZES, ("photo",), "art", seed=3, fraction=0.2),
        DomainSplit(SIZES, ("art",), "photo", seed=3, fraction=0.1),
        DomainSplit(SIZES, ("photo", "sketch"), "art", seed=3, fraction=0.1),
        DomainSplit({**SIZES, "art": 51}, ("photo",), "art", seed=3, fraction=0.1),
    ]
    hashes = {split.split_sha256, *(other.split_sha256 for other in others)}
    assert len(hashes) == 1 + len(others)


def test_domains_that_cannot_be_split() -> None:
    for fraction in (-0.1, 1.0, 20):
        with pytest.raises(ValueError, match="at least 0 and less than 1"):
            split_domain(10, fraction, 0, 0)
    with pytest.raises(ValueError, match="no domain foto; choose of photo, art, sketch"):
        DomainSplit(SIZES, ("foto",), "art", seed=0)
    for sources in ((), ("art", "photo"), ("photo", "photo")):
        with pytest.raises(ValueError, match="each once, and not the target"):
            DomainSplit(SIZES, sources, "art", seed=0)
    with pytest.raises(ValueError, match=r"b has 4 images, too few to hold out 0.2"):
        DomainSplit({"a": 9, "b": 4}, ("b",), "a", seed=0)
    small = DomainSplit({"a": 4, "b": 4}, ("b",), "a", seed=0, fraction=0)
    assert small.train["b"].tolist() == [0, 1, 2, 3] and not len(small.val["b"])
