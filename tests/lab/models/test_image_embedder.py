"""Embedders of image features, by hand."""

from __future__ import annotations

from typing import Any

import torch

from batchformer.lab.models.heads import normalised_embedder, rectified_embedder


def test_rectified_by_hand() -> None:
    torch.manual_seed(0)
    embedder, x = rectified_embedder(6, 4).double(), torch.randn(5, 6, dtype=torch.float64)
    linear: Any = embedder[0]
    expected = (x @ linear.weight.T + linear.bias).clamp_min(0)
    torch.testing.assert_close(embedder(x), expected)
    assert (expected == 0).any() and (expected > 0).any()


def test_normalised_by_hand() -> None:
    torch.manual_seed(0)
    embedder: Any = normalised_embedder(6, 8, 4, 0.5).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    first, norm, _, dropout, last = embedder
    hidden = x @ first.weight.T + first.bias
    mean, variance = hidden.mean(1, keepdim=True), hidden.var(1, unbiased=False, keepdim=True)
    hidden = ((hidden - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias).clamp_min(0)
    expected = hidden @ last.weight.T + last.bias
    torch.testing.assert_close(embedder.eval()(x), expected)
    # No ReLU at the end, and dropout in training alone.
    assert (expected < 0).any() and dropout.p == 0.5
    assert not torch.equal(embedder.train()(x), expected)
