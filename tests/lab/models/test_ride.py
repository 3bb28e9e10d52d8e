"""RIDE's networks: sizes counted by hand, experts against plain ResNets."""

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


def _stage(channels: int, width: int, blocks: int) -> int:
    """3x3 kernels and two numbers for each normalised channel."""
    first = 9 * channels * width + 9 * width * width + 4 * width
    return first + (blocks - 1) * (18 * width * width + 4 * width)


@pytest.mark.parametrize(("experts", "classes"), [(1, 10), (3, 100), (6, 100)])
def test_cifar_parameters_counted_by_hand(experts: int, classes: int) -> None:
    shared = 27 * 16 + 32 + _stage(16, 16, 5)
    each = _stage(16, 24, 5) + _stage(24, 48, 5) + 48 * classes
    network = ride_resnet32(classes, experts)
    assert count(network.shared) == shared
    assert count(network) == shared + experts * each
    assert network.experts == experts
    assert network.num_features == 48


def _imagenet_stage(
    channels: int, width: int, blocks: int, group_width: float, groups: int, bottleneck: bool
) -> int:
    """Kernels, normalisation and the 1x1 shortcut where channels change, block by block."""
    total = 0
    for index in range(blocks):
        out = 4 * width if bottleneck else width
        if bottleneck:
            inner = int(width * group_width) * groups
            total += channels * inner + 9 * inner * inner // groups + inner * out
            total += 4 * inner + 2 * out
        else:
            total += 9 * channels * width + 9 * width * width + 4 * width
        if index == 0 and (channels != out):
            total += channels * out + 2 * out
        channels = out
    return total


@pytest.mark.parametrize(
    ("build", "blocks", "group_width", "groups", "bottleneck"),
    [
        (ride_resnet10, (1, 1, 1, 1), 1.0, 1, False),
        (ride_resnet50, (3, 4, 6, 3), 1.0, 1, True),
        (ride_resnext50, (3, 4, 6, 3), 4 / 64, 32, True),
    ],
)
def test_imagenet_parameters_counted_by_hand(
    build: Callable[..., RideNetwork],
    blocks: tuple[int, int, int, int],
    group_width: float,
    groups: int,
    bottleneck: bool,
) -> None:
    pytest.importorskip("timm")
    with torch.device("meta"):
        network = build(1000, experts=2)
    expansion = 4 if bottleneck else 1
    sizes, channels = [], 64
    for width, depth in zip((64, 128, 192, 384), blocks, strict=True):
        sizes.append(_imagenet_stage(channels, width, depth, group_width, groups, bottleneck))
        channels = width * expansion
    assert network.num_features == 384 * expansion
    assert count(network.shared) == 49 * 3 * 64 + 2 * 64 + sizes[0] + sizes[1]
    head = 1000 * 384 * expansion
    assert count(network) == count(network.shared) + 2 * (sizes[2] + sizes[3] + head)


def test_imagenet_forward_and_initial_weights() -> None:
    pytest.importorskip("timm")
    torch.manual_seed(0)
    network = ride_resnet10(5, experts=2)
    features = network.expert_features(torch.randn(2, 3, 64, 64))
    assert features.shape == (2, 2, 384)
    assert network.expert_logits(features).shape == (2, 2, 5)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()


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
