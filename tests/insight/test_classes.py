"""Bins of neighbours in training count, and shots."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from batchformer.insight.classes import Classes, bins_of


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 20))
def test_bins_are_neighbours_of_nearly_equal_size(counts: list[int], most: int) -> None:
    bins = bins_of(torch.tensor(counts), most).tolist()
    sizes = torch.bincount(torch.tensor(bins))
    assert len(sizes) == min(len(counts), most) and sizes.max() - sizes.min() <= 1
    for a, one in zip(counts, bins, strict=True):
        for b, other in zip(counts, bins, strict=True):
            assert not (a > b and one > other)


def test_classes_know_their_groups() -> None:
    counts = torch.tensor([500, 7, 60, 200])
    classes = Classes.by_shots(("a", "b", "c", "d"), counts)
    assert classes.shot_of_class.tolist() == [0, 2, 1, 0]
    assert classes.bin_of_class.tolist() == [0, 3, 2, 1]
    assert len(classes) == classes.bins == 4
    by_thirds = Classes.by_shots("abc", torch.tensor([3, 9, 1]), "thirds")
    assert by_thirds.shot_of_class.tolist() == [1, 0, 2]
    assert Classes.by_shots(["x"] * 1000, torch.arange(1000)).bins == 100
