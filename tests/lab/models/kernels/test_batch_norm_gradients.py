"""Sums of gradients over chunks of rows, against float64."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.usefixtures("several_chunks")
@pytest.mark.parametrize("residual", [False, True])
def test_sums_of_chunks_and_of_all(
    residual: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchformer.lab.models.kernels import batch_norm as batch_norm_gradients

    monkeypatch.setattr(batch_norm_gradients, "SUMS_TILE", 16)
    torch.manual_seed(0)
    y, dout, out = (
        torch.randn(2, 6, 3, 5, device=device).contiguous(memory_format=torch.channels_last)
        for _ in range(3)
    )
    statistics = torch.rand(2, 6, device=device) + 0.5
    weight, bias = torch.randn(6, device=device), torch.randn(6, device=device)
    exact = [t.double() for t in (y, dout, out, *statistics, weight, bias)]
    y64, dout64, out64, mean, inverse, weight64, bias64 = (
        t.view(-1, 1, 1) if t.dim() == 1 else t for t in exact
    )
    normal = (y64 - mean) * inverse
    before = out64 if residual else normal * weight64 + bias64
    expected = torch.where(before > 0, dout64, 0)

    of_relu = out if residual else None
    gradient, sums = batch_norm_gradients.gradient_sums(dout, y, statistics, weight, bias, of_relu)
    assert sums.shape[2] > 1
    assert torch.equal(gradient, expected.float()) if residual else gradient is dout
    dweight, dbias = batch_norm_gradients.merge_sums(sums)
    torch.testing.assert_close(dbias.double(), expected.sum((0, 2, 3)), rtol=1e-5, atol=1e-5)
    along = (expected * normal).sum((0, 2, 3))
    torch.testing.assert_close(dweight.double(), along, rtol=1e-5, atol=1e-5)
