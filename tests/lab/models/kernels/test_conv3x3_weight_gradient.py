"""The gradient of the weight, however the work is split."""

from __future__ import annotations

import pytest
import torch
from torch.nn.grad import conv2d_weight


@pytest.mark.gpu
@pytest.mark.parametrize(("window", "group"), [(1, 1), (4, 1), (4, 2)])
def test_any_split_gives_the_same(
    window: int, group: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small tiles make several programs of several tiles, the last of each with fewer rows."""
    from batchformer.lab.models.kernels import conv3x3 as kernels
    from batchformer.lab.models.kernels.conv3x3 import Share, Tile

    monkeypatch.setattr(kernels, "SUM_COLUMNS", 8)
    monkeypatch.setattr(kernels, "SUM_PARTS", 2)
    torch.manual_seed(0)
    x = torch.randn(3, 16, 5, 6, device=device, dtype=torch.float16)
    dy = torch.randn(3, 16, 5, 6, device=device, dtype=torch.float16)
    weight = torch.empty(16, 16, 3, 3, device=device)
    share = Share(Tile(16, window, group, 4, 1), 6)
    found = kernels.weight_gradient(x, dy, weight, share)
    expected = conv2d_weight(x.double(), list(weight.shape), dy.double(), padding=1)
    assert found.dtype == weight.dtype and found.stride() == weight.stride()
    assert (found - expected).abs().max() <= 2e-6 * expected.abs().max()


@pytest.mark.gpu
def test_the_same_input_compiled_gives_the_same_bits() -> None:
    from batchformer.lab.models.kernels.conv3x3 import weight_gradient

    x, dy = (torch.randn(64, 16, 32, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.empty(16, 16, 3, 3, device="cuda")
    first = weight_gradient(x, dy, weight)
    assert all(torch.equal(weight_gradient(x, dy, weight), first) for _ in range(10))
