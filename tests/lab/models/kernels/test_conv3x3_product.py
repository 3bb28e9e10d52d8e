"""The product that is a convolution, in any tile, and backwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("window", "group", "width"), [(1, 1, 3), (4, 1, 3), (4, 2, 4)])
def test_any_tile_gives_the_same(
    window: int, group: int, width: int, transposed: bool, device: torch.device
) -> None:
    from batchformer.lab.models.kernels.conv3x3 import Tile, product

    torch.manual_seed(0)
    x = torch.randn(2, 16, 5, width, device=device, dtype=torch.float16)
    weight = torch.randn(*((16, 32) if transposed else (32, 16)), 3, 3, device=device)
    weight = weight.half().float()
    tile = Tile(16, window, group, 4, 1)
    found, parts = product(x, weight, transposed=transposed, tile=tile)
    exact = weight.double()
    if transposed:
        exact = exact.transpose(0, 1).flip(2, 3)
    expected = F.conv2d(x.double(), exact, padding=1)
    assert found.dtype == x.dtype and found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).abs().max() <= (2**-11 + 2e-6) * expected.abs().max()
    assert parts.numel() == 0, "moments are made where they are wanted"
