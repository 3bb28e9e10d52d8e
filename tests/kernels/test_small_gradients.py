"""Gradients of a layer's input and parameters from those of its products."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.parametrize("part", [16, 64])
def test_products_over_rows_in_parts_or_at_once(
    part: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchformer.kernels import small_gradients
    from batchformer.kernels.small_rows import RowGradients

    monkeypatch.setitem(small_gradients.WEIGHTS, 4, small_gradients.Share(16, part))
    torch.manual_seed(0)
    rows, c = 37, 16
    sizes = {"gradients": (6, rows, c), "mixed": (rows, c), "delta": (rows, 1)}
    sizes |= {"residual": (rows, c), "sums": (3, 4, c)}
    g = RowGradients(**{name: torch.randn(size, device=device) for name, size in sizes.items()})
    inputs, weight = torch.randn(4, rows, c, device=device), torch.randn(3 * c, c, device=device)
    kind = torch.float32
    dx, found = small_gradients.finish(
        g, inputs, weight, kind, kind, of_input=True, of_parameters=True
    )
    of_products = g.gradients.double()
    of_inputs = inputs.double()[[0, 0, 0, 1, 2, 3]]
    weights = torch.einsum("prc,prd->pcd", of_products, of_inputs)
    biases = of_products.sum(1)
    pairs = [t for p in (3, 4, 5) for t in (weights[p], biases[p])]
    expected = [weights[:3].flatten(0, 1), biases[:3].flatten(), *pairs, *g.sums.double().sum(0)]
    assert dx is not None
    torch.testing.assert_close(
        dx.double(),
        g.residual.double() + torch.cat(tuple(of_products[:3]), 1) @ weight.double(),
        rtol=1e-5,
        atol=1e-5,
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours is not None
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    only, nothing = small_gradients.finish(
        g, inputs, weight, kind, kind, of_input=True, of_parameters=False
    )
    assert only is not None and torch.equal(only, dx) and nothing == [None] * 12
    none, again = small_gradients.finish(
        g, inputs, weight, kind, kind, of_input=False, of_parameters=True
    )
    assert none is None
    for ours, theirs in zip(again, found, strict=True):
        assert ours is not None and theirs is not None and torch.equal(ours, theirs)
