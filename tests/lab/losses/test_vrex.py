"""The variance of risks against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.losses.domains import vrex


@given(losses=st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_equals_brute_force(losses: list[float]) -> None:
    mean = sum(losses) / len(losses)
    expected = sum((loss - mean) ** 2 for loss in losses) / len(losses)
    assert vrex(torch.tensor(losses, dtype=torch.float64)).item() == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_anything_but_a_row_of_losses_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one of each domain"):
        vrex(torch.zeros(shape))
