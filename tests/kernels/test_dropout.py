"""Dropout masks are the bits of the generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from batchformer.kernels.dropout import draw_seeds, threshold_and_scale


@given(st.floats(0, 1))
def test_the_expectation_is_unchanged(probability: float) -> None:
    threshold, scale = threshold_and_scale(probability)
    assert threshold / 65536 == pytest.approx(probability, abs=0.5 / 65536 + 1e-12)
    kept = 1 - threshold / 65536
    assert kept * scale == (pytest.approx(1) if threshold < 65536 else 0)


def test_seeds_follow_torchs_generator(device: torch.device) -> None:
    torch.manual_seed(3)
    first, second = draw_seeds(4, device), draw_seeds(4, device)
    torch.manual_seed(3)
    assert torch.equal(draw_seeds(4, device), first) and not torch.equal(first, second)
    assert first.shape == (4,) and first.dtype == torch.int64 and len(first.unique()) == 4


@pytest.mark.gpu
def test_eight_rows_share_one_call_of_the_generator(
    philox: Callable[[int, tuple[int, int, int, int]], tuple[int, ...]], device: torch.device
) -> None:
    """Seen through the softmax, which drops by these tiles."""
    from batchformer.kernels.attention import softmax_dropout_

    seed, heads, rows, columns = 2**61 + 12345, 2, 11, 5
    scores = torch.zeros(heads, rows, columns, device=device)
    sums = torch.empty(heads, rows, device=device)
    kept = softmax_dropout_(scores, sums, torch.tensor([seed], device=device), 0.3) > 0
    for head in range(heads):
        for row in range(rows):
            for column in range(columns):
                words = philox(seed, (column, head * 2 + row // 8, 0, 0))
                word = words[row % 8 // 2]
                bits = word >> 16 if row % 2 else word & 0xFFFF
                assert bool(kept[head, row, column]) == (bits >= round(0.3 * 65536))
