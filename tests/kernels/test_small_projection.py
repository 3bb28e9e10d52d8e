"""Queries, keys and values of a small layer, and its blocks of rows."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.gpu
def test_blocks_grow_with_the_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from batchformer.kernels import small_projection

    monkeypatch.setattr(small_projection, "processors", lambda device: 2)
    block = small_projection.Block(16, 4, 64)
    sizes = [block.fitted(total, device).rows for total in (1, 128, 129, 257, 513, 10**6)]
    assert sizes == [16, 16, 32, 64, 64, 64]


@pytest.mark.gpu
def test_three_products_and_a_copy_of_the_input(device: torch.device) -> None:
    from batchformer.kernels.small_projection import project

    torch.manual_seed(0)
    x = torch.randn(19, 16, device=device)
    weight, bias = torch.randn(48, 16, device=device), torch.randn(48, device=device)
    inputs = torch.full((4, 19, 16), torch.nan, device=device)
    found = project(x, weight, bias, inputs)
    expected = (x.double() @ weight.double().T + bias.double()).view(19, 3, 16).transpose(0, 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(inputs[0], x) and inputs[1:].isnan().all()
