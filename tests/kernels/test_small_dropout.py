"""Masks of the small kernels: the generator's bits, and independent of one another."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.mark.gpu
def test_masks_are_the_generators_bits(
    philox: Callable[[int, tuple[int, int, int, int]], tuple[int, ...]], device: torch.device
) -> None:
    from batchformer.kernels.small_dropout import keep_masks

    seed, planes, rows, columns = 2**61 + 12345, 2, 3, 70
    got = keep_masks(torch.tensor([seed], device=device), planes, rows, columns, 0.3)
    for plane in range(planes):
        for row in range(rows):
            for column in range(columns):
                call = column // 32 * 4 + column // 2 % 4
                word = philox(seed, (call, row, plane, 0))[column // 8 % 4]
                bits = word >> 16 if column % 2 else word & 0xFFFF
                assert bool(got[plane, row, column]) == (bits >= round(0.3 * 65536))


@pytest.mark.gpu
def test_masks_keep_at_the_rate_and_are_independent(seeds: Tensor) -> None:
    """Between positions, heads, rows, columns and places: no two vary together."""
    from batchformer.kernels.small_dropout import keep_masks

    dropout = 0.3
    attention = keep_masks(seeds[:1], 2 * 2, 40, 40, dropout).view(2, 2, 40, 40)
    others = torch.stack([keep_masks(seed[None], 1, 80, 64, dropout) for seed in seeds[1:]])
    others = others.view(3, 2, 40, 64)
    deviation = (dropout * (1 - dropout)) ** 0.5
    for mask in (attention, *others):
        rate = float(mask.double().mean())
        assert rate == pytest.approx(1 - dropout, abs=5 * deviation / mask.numel() ** 0.5)

    def largest_correlation(lines: Tensor) -> float:
        apart = (lines.double() - (1 - dropout)) / deviation
        together = apart @ apart.T / lines.shape[1]
        largest = float(together.fill_diagonal_(0).abs().max())
        return largest * math.sqrt(lines.shape[1])

    # In units of the deviation of a correlation of independent bits, over up to 10^5 pairs.
    assert largest_correlation(attention.flatten(0, 2)) < 7
    assert largest_correlation(attention.flatten(0, 2).T) < 7
    assert largest_correlation(attention.flatten(0, 1).flatten(1)) < 7
    assert largest_correlation(others.flatten(0, 2)) < 7
    assert largest_correlation(others.flatten(0, 2).T) < 7
    assert largest_correlation(others.flatten(1)) < 7
