"""Softmax with dropout in blocks, against torch's in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.mark.gpu
def test_masks_are_independent_of_the_block_and_differ_by_head_row_and_seed(
    device: torch.device,
) -> None:
    from batchformer.kernels.attention import softmax_dropout_

    def mask(seed: int, rows: slice, n: int = 40) -> Tensor:
        part = torch.zeros(2, 40, n, device=device)[:, rows].contiguous()
        sums = torch.empty(2, 40, device=device)
        drawn_by = torch.tensor([seed], device=device)
        return softmax_dropout_(part, sums, drawn_by, 0.5, rows.start) > 0

    whole = mask(1, slice(0, 40))
    assert torch.equal(mask(1, slice(8, 24)), whole[:, 8:24])
    assert not torch.equal(mask(2, slice(0, 40)), whole)
    flat = whole.flatten(0, 1).double() - 0.5
    correlation = (flat @ flat.T / 10).fill_diagonal_(0)  # 1 for equal rows
    assert float(correlation.abs().max()) < 0.9


@pytest.mark.gpu
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("first_row", [0, 8])
def test_weights_and_sums_of_a_block_of_rows(
    dropped: bool,
    first_row: int,
    device: torch.device,
    seed: Tensor,
    relative: Callable[[Tensor, Tensor], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from batchformer.kernels import attention as softmax
    from batchformer.kernels.dropout import threshold_and_scale

    monkeypatch.setattr(softmax, "FORWARD", (16, 4))
    torch.manual_seed(0)
    scores = 3 * torch.randn(2, 11, 37, device=device)
    exact = scores.double()
    sums = torch.full((2, 30), torch.nan, device=device)
    apart = torch.empty_like(scores) if dropped else None
    out = softmax.softmax_dropout_(scores, sums, seed, 0.3, first_row, apart)
    kept = (out != 0) * threshold_and_scale(0.3)[1]
    assert relative(out, torch.softmax(exact, -1) * kept) < 1e-6
    assert float((out != 0).double().mean()) == pytest.approx(0.7, abs=0.1)
    here = slice(first_row, first_row + 11)
    assert relative(sums[:, here], torch.logsumexp(exact, -1) / torch.tensor(2.0).log()) < 1e-6
    assert sums.isnan().sum() == 2 * (30 - 11), "other rows are left alone"
    if dropped:
        assert out is apart and relative(scores, torch.softmax(exact, -1)) < 1e-6


@pytest.mark.gpu
def test_products_are_summed_within_heads(
    device: torch.device, relative: Callable[[Tensor, Tensor], float]
) -> None:
    from batchformer.kernels.attention import output_times_gradient

    torch.manual_seed(0)
    a, b = torch.randn(5, 15, device=device), torch.randn(5, 15, device=device)
    expected = (a.double() * b.double()).view(5, 3, 5).sum(-1).T
    assert relative(output_times_gradient(a, b, 3), expected) < 1e-6
