"""Partial results are summed, whatever their number and shape."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 5), (64, 32), (130, 3, 21)])
def test_against_float64(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    from batchformer.kernels.dropout import column_sums

    torch.manual_seed(0)
    partial = torch.randn(shape, device=device)
    found, expected = column_sums(partial, dtype), partial.double().sum(0)
    assert found.shape == shape[1:] and found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
