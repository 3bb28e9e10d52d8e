"""All that follows the attention, row by row, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@pytest.mark.gpu
def test_values_and_gradients(
    device: torch.device, seeds: Tensor, relative: Callable[[Tensor, Tensor], float]
) -> None:
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.small_dropout import keep_masks
    from batchformer.kernels.small_rows import (
        Kept,
        Tail,
        after_attention,
        after_attention_backward,
    )

    torch.manual_seed(0)
    rows, channels, heads, dropout = 19, 32, 2, 0.3
    shapes = [(channels, channels), (channels,)] * 3 + [(channels,)] * 4
    tail = Tail(*(0.3 * torch.randn(shape, device=device) for shape in shapes))
    x, mixed, dout = (torch.randn(rows, channels, device=device) for _ in range(3))
    empty = torch.empty(2, rows, channels, device=device)
    kept = Kept(torch.cat((x[None], mixed[None], empty)), empty.clone(), empty[..., 0].clone())
    out = after_attention(x, tail, kept, dropout, seeds)
    found = after_attention_backward(dout, tail, kept, heads, dropout, seeds)

    scale = threshold_and_scale(dropout)[1]
    drop = [scale * keep_masks(s[None], 1, rows, channels, dropout)[0] for s in seeds[1:]]
    leaves = [t.double().requires_grad_() for t in (x, mixed, *tail)]
    x64, mixed64, wo, bo, w1, b1, w2, b2, g1, s1, g2, s2 = leaves
    after = F.linear(mixed64, wo, bo)
    y = F.layer_norm(x64 + after * drop[0], (channels,), g1, s1)
    inner = F.linear(y, w1, b1)
    last = F.linear(F.relu(inner) * drop[1], w2, b2)
    expected = F.layer_norm(y + last * drop[2], (channels,), g2, s2)
    assert relative(out, expected.detach()) < 1e-5
    assert torch.equal(kept.inputs[:2], torch.stack((x, mixed))), "not to be written to"
    wanted = torch.autograd.grad(
        expected, (x64, mixed64, after, inner, last, g1, s1, g2, s2), dout.double()
    )
    products = found.gradients[3:]
    ours = (found.residual, found.mixed, *products, *found.sums.sum(0))
    for one, other in zip(ours, wanted, strict=True):
        assert relative(one, other) < 1e-5
    assert len(found.sums) > 1, "several programs"
    along = (mixed.double() * wanted[1]).view(rows, heads, -1).sum(-1)
    assert relative(found.delta, along) < 1e-5
