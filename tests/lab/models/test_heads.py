"""Classifier heads, projections and embedders against their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from batchformer.lab.models.heads import (
    CosineClassifier,
    Projection,
    WithFeatureLayer,
    normalised_embedder,
    normalised_projector,
    projector,
)
from batchformer.lab.models.networks import digits_net
from batchformer.lab.models.ride import ride_resnet32
from batchformer.nn.module import parameter_count

# The cosine classifier.


def test_logits_are_scaled_cosines() -> None:
    torch.manual_seed(0)
    head = CosineClassifier(4, 3, scale=12.5).double()
    with torch.no_grad():
        head.weight *= torch.tensor([[0.1], [1.0], [30.0]])
    x = 7 * torch.randn(5, 4, dtype=torch.float64)
    logits = head(x)
    for i, row in enumerate(x.tolist()):
        for c, vector in enumerate(head.weight.tolist()):
            dot = sum(a * b for a, b in zip(row, vector, strict=True))
            assert logits[i, c].item() == pytest.approx(
                12.5 * dot / (math.hypot(*row) * math.hypot(*vector)), rel=1e-9
            )


def test_class_vectors_begin_as_directions_without_preference() -> None:
    torch.manual_seed(0)
    head = CosineClassifier(48, 2000)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(2000))
    assert head.weight.mean(0).norm().item() < 0.1
    assert head.weight.std().item() == pytest.approx(48**-0.5, rel=0.01)


def test_a_feature_of_zeros_has_zero_logits_and_finite_gradients() -> None:
    head = CosineClassifier(3, 2)
    x = torch.zeros(1, 3, requires_grad=True)
    logits = head(x)
    assert logits.tolist() == [[0, 0]]
    (gradient,) = torch.autograd.grad(logits.sum(), [x])
    assert gradient.isfinite().all()


def test_it_says_what_it_is() -> None:
    expected = "CosineClassifier(in_features=3, out_features=2, scale=30)"
    assert repr(CosineClassifier(3, 2)) == expected


# MoCo's heads; test_moco_reference.py computes MoCo-v3's.


def test_parameters_of_the_papers() -> None:
    v2 = projector(2048, 128, layers=2, hidden=2048)
    assert parameter_count(v2) == 2048 * 2048 + 2048 + 2048 * 128 + 128
    v3 = normalised_projector(2048, 256, layers=2, hidden=4096)
    assert parameter_count(v3) == 2048 * 4096 + 2 * 4096 + 4096 * 256
    predictor = normalised_projector(256, 256, layers=2, hidden=4096, last_norm=False)
    assert parameter_count(predictor) == 256 * 4096 + 2 * 4096 + 4096 * 256
    assert isinstance(predictor[-1], nn.Linear) and predictor[-1].bias is None
    vit = normalised_projector(384, 256, layers=3, hidden=4096)
    hidden = 384 * 4096 + 4096 * 4096 + 2 * 2 * 4096
    assert parameter_count(vit) == hidden + 4096 * 256


def test_the_first_head_by_hand() -> None:
    head = projector(6, 3, layers=3, hidden=5)
    x = torch.randn(4, 6)
    rows = x
    for number, layer in enumerate(part for part in head if isinstance(part, nn.Linear)):
        rows = F.linear(F.relu(rows) if number else rows, layer.weight, layer.bias)
    torch.testing.assert_close(head(x), rows)


def test_the_front_comes_first_and_changes_no_draw_of_the_rest() -> None:
    torch.manual_seed(3)
    plain = projector(6, 3, layers=2, hidden=5)
    torch.manual_seed(3)
    head = projector(6, 3, layers=2, hidden=5, front=True)
    for own, other in zip(head[3:].parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)
    x = torch.randn(9, 6)
    first = F.linear(x, head[0].weight, head[0].bias)  # type: ignore[arg-type]
    standardised = (first - first.mean(0)) / (first.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), plain(F.relu(standardised)))


def test_no_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one linear layer, got layers=0"):
        projector(4, 2, layers=0, hidden=4)


# PaCo's projection.


def test_it_is_two_layers_written_out() -> None:
    torch.manual_seed(0)
    projection = Projection(6, 4).double()
    x = torch.randn(8, 6, dtype=torch.float64)
    hidden = x @ projection.hidden.weight.T + projection.hidden.bias
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    out = hidden.clamp(min=0) @ projection.output.weight.T + projection.output.bias
    torch.testing.assert_close(projection(x), out / out.norm(dim=1, keepdim=True))


# Embedders of images.


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


# A layer before the classifier.


def test_a_layer_between_features_and_classifier() -> None:
    torch.manual_seed(0)
    body = digits_net(5)
    network = WithFeatureLayer(body, 12).eval()
    x = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        pooled = body.forward_features(x)
        features = (pooled @ network.layer.weight.T + network.layer.bias).clamp(min=0)
        found = network.forward_head(network.forward_features(x), pre_logits=True)
        torch.testing.assert_close(found, features)
        torch.testing.assert_close(network(x), features @ network.fc.weight.T + network.fc.bias)
    assert network.num_features == 12 and network.get_classifier() is network.fc
    assert not any(name.startswith("body.fc") for name in network.state_dict())


def test_a_network_of_several_classifiers_has_no_place_for_it() -> None:
    with pytest.raises(ValueError, match=r"RideNetwork has several; set --hyper\.feature-layer 0"):
        WithFeatureLayer(ride_resnet32(3, 2), 12)
