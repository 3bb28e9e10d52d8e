from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.transforms.base import uniform_float, uniform_int

LARGEST = 1 - 2.0**-53  # the largest number that torch.rand gives in float64


@given(st.integers(1, 10**9))
def test_the_largest_number_gives_the_last_place(count: int) -> None:
    assert uniform_int(torch.tensor([0.0, LARGEST], dtype=torch.float64), count).tolist() == [
        0,
        count - 1,
    ]


def test_whole_numbers_are_evenly_spread(numbers: Callable[..., Tensor]) -> None:
    counts = torch.bincount(uniform_int(numbers(10_000, 1)[:, 0], 10))
    # 1,000 expected of each of ten, with a standard deviation of 30.
    assert len(counts) == 10 and counts.min() > 880 and counts.max() < 1120


def test_counts_may_differ_by_sample() -> None:
    u = torch.full((3,), 0.5, dtype=torch.float64)
    assert uniform_int(u, torch.tensor([1, 2, 7])).tolist() == [0, 1, 3]


@given(st.floats(-100, 100), st.floats(0, 100))
def test_between_keeps_its_bounds(low: float, extent: float) -> None:
    out = uniform_float(torch.tensor([0.0, 0.5], dtype=torch.float64), low, low + extent)
    assert out.tolist() == pytest.approx([low, low + extent / 2])
