from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer.lab.models.networks import resnet10

pytest.importorskip("timm")


def test_parameters_counted_by_hand() -> None:
    total = 49 * 3 * 64 + 2 * 64
    channels = 64
    for width in (64, 128, 256, 512):
        total += 9 * channels * width + 9 * width * width + 4 * width
        if width != channels:
            total += channels * width + 2 * width
        channels = width
    total += 512 * 7 + 7
    assert sum(p.numel() for p in resnet10(7).parameters()) == total


def test_it_computes_what_torchvision_computes() -> None:
    torchvision = pytest.importorskip("torchvision")
    block = torchvision.models.resnet.BasicBlock
    reference = torchvision.models.ResNet(block, [1, 1, 1, 1], num_classes=7).eval()
    network = resnet10(7).eval()
    network.load_state_dict(reference.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(network(x), reference(x))


def test_initial_weights() -> None:
    torch.manual_seed(0)
    for module in resnet10(7).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
