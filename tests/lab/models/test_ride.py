"""RIDE's networks: their sizes, experts against plain ResNets."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from batchformer.lab.models.heads import CosineClassifier
from batchformer.lab.models.networks import resnet32
from batchformer.lab.models.ride import (
    RideNetwork,
    ride_resnet10,
    ride_resnet32,
    ride_resnet50,
    ride_resnext50,
)


def small(experts: int = 3) -> RideNetwork:
    torch.manual_seed(0)
    return ride_resnet32(7, experts, depth=8)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("build", "features", "shared", "whole"),
    [
        (ride_resnet10, 384, 313_664, 6_372_416),
        (ride_resnet50, 1536, 1_444_928, 29_599_808),
        (ride_resnext50, 1536, 1_412_416, 29_063_488),
    ],
)
def test_imagenet_parameters(
    build: Callable[..., RideNetwork], features: int, shared: int, whole: int
) -> None:
    """Kernels, two numbers for each normalised channel, and directions, counted by hand."""
    with torch.device("meta"):
        network = build(1000, experts=2)
    assert network.num_features == features
    assert (count(network.shared), count(network)) == (shared, whole)


def test_each_expert_is_a_narrow_resnet_on_the_shared_trunk() -> None:
    network = small().double()
    x = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    network(x)  # moves the running statistics
    network.eval()
    features = network.expert_features(x)
    assert features.shape == (3, 6, 48)
    for i, branch in enumerate(network.branches):
        plain = resnet32(1, widths=(16, 24, 48), depth=8).double().eval()
        state = {**network.shared.state_dict(), **branch.state_dict()}
        missing, unexpected = plain.load_state_dict(state, strict=False)
        assert set(missing) == {"fc.weight", "fc.bias"}
        assert unexpected == []
        torch.testing.assert_close(plain.forward_features(x), features[i])


def test_logits_are_scaled_cosines_and_their_mean_is_the_prediction() -> None:
    assert small(experts=1).experts == 1
    network = small().eval()
    x = torch.randn(4, 3, 16, 16)
    features = network.expert_features(x)
    each = [network.classify(features[i], i) for i in range(3)]
    for i, logits in enumerate(each):
        head = network.get_classifier()[i]
        assert isinstance(head, CosineClassifier)
        cosines = torch.cosine_similarity(features[i][:, None], head.weight[None], dim=-1)
        torch.testing.assert_close(logits, 30 * cosines)
    torch.testing.assert_close(network.expert_logits(features), torch.stack(each))
    torch.testing.assert_close(network(x), sum(each, torch.zeros(4, 7)) / 3)
    # Rows need not be the batch: with two streams there are twice as many.
    assert network.expert_logits(torch.cat([features, features], 1)).shape == (3, 8, 7)


def test_experts_begin_different_and_learn_apart() -> None:
    network = small()
    logits = network.expert_logits(network.expert_features(torch.randn(4, 3, 16, 16)))
    assert not torch.allclose(logits[0], logits[1], atol=0.1)
    (logits[1] ** 2).sum().backward()

    def touched(module: nn.Module) -> set[bool]:
        return {p.grad is not None and bool(p.grad.any()) for p in module.parameters()}

    assert touched(network.shared) == {True}
    for i in range(3):
        assert touched(network.branches[i]) == {i == 1}
        assert touched(network.classifiers[i]) == {i == 1}


def test_it_compiles_whole() -> None:
    network = ride_resnet32(5, experts=2, depth=8)
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(copy.deepcopy(network), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one expert, got 0"):
        ride_resnet32(7, experts=0)
    with pytest.raises(ValueError, match=r"features \(3, rows, 48\).*got \(2, 5, 48\)"):
        small().expert_logits(torch.zeros(2, 5, 48))
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match="at least one expert"):
        ride_resnet50(7, experts=0)
