"""Attention for narrow heads, and the control that attends to itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.mark.gpu
def test_the_control_drops_the_weights_that_attention_to_the_batch_drops(
    device: torch.device, seeds: Tensor, relative: Callable[[Tensor, Tensor], float]
) -> None:
    from batchformer.kernels.small_attention import Attention, attend
    from batchformer.kernels.small_dropout import keep_masks

    kept = keep_masks(seeds[:1], 2 * 2, 19, 19, 0.5).view(2, 2, 19, 19)
    qkv = torch.ones(3, 2 * 19, 32, device=device)
    out = torch.empty(2 * 19, 32, device=device)
    attend(Attention(2, 19, 32, 2, 0.5, True), qkv, out, seeds)
    diagonal = kept.diagonal(dim1=-2, dim2=-1)  # (L, heads, N)
    seen = out.view(2, 19, 2, 16).permute(0, 2, 1, 3)
    assert torch.equal(seen, (2.0 * diagonal)[..., None].expand_as(seen))
    # The same queries, keys and values attending to the batch: all weights are 1/19.
    attend(Attention(2, 19, 32, 2, 0.5, False), qkv, out, seeds)
    seen = out.view(2, 19, 2, 16).permute(0, 2, 1, 3)[..., 0]
    assert relative(seen, 2.0 * kept.double().mean(-1)) < 1e-6


@pytest.mark.gpu
def test_values_and_gradients(
    device: torch.device, seeds: Tensor, relative: Callable[[Tensor, Tensor], float]
) -> None:
    """Several keys' tiles and rows' blocks, the last of each with fewer."""
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.small_attention import Attention, attend, attend_backward
    from batchformer.kernels.small_dropout import keep_masks

    torch.manual_seed(0)
    length, n, channels, heads, dropout = 2, 35, 32, 2, 0.5
    a = Attention(length, n, channels, heads, dropout, False)
    qkv = torch.randn(3, length * n, channels, device=device)
    out, gradient = torch.empty_like(qkv[0]), torch.randn_like(qkv[0])
    log_sum = attend(a, qkv, out, seeds)
    kept = keep_masks(seeds[:1], length * heads, n, n, dropout).view(length, heads, n, n)

    exact = qkv.double().requires_grad_()
    q, k, v = exact.view(3, length, n, heads, -1).transpose(2, 3)
    scores = q @ k.transpose(-2, -1) / 16**0.5
    weights = torch.softmax(scores, -1) * kept * threshold_and_scale(dropout)[1]
    expected = (weights @ v).transpose(1, 2).reshape(out.shape)
    (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
    assert relative(out, expected) < 1e-5
    sums = torch.logsumexp(scores, -1).transpose(1, 2).reshape(log_sum.shape)
    assert relative(log_sum, sums / torch.tensor(2.0).log()) < 1e-5
    delta = (out * gradient).view(-1, heads, 16).sum(-1)
    into = torch.empty_like(qkv)
    attend_backward(a, qkv, gradient, log_sum, delta, into, seeds)
    assert relative(into, wanted) < 1e-5
