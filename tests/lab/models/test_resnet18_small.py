from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from batchformer.lab.models.networks import resnet18_small

pytest.importorskip("timm")


def test_parameters_counted_by_hand() -> None:
    total = 9 * 3 * 64 + 2 * 64
    channels = 64
    for width in (64, 128, 256, 512):
        total += 9 * channels * width + 3 * 9 * width * width + 8 * width
        if width != channels:
            total += channels * width + 2 * width
        channels = width
    total += 512 * 7 + 7
    assert sum(p.numel() for p in resnet18_small(7).parameters()) == total


def test_it_computes_what_torchvision_computes() -> None:
    torchvision = pytest.importorskip("torchvision")
    reference = torchvision.models.resnet18(num_classes=7)
    reference.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    reference.maxpool = nn.Identity()
    network = resnet18_small(7).eval()
    network.load_state_dict(reference.eval().state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(network(x), reference(x))


def test_the_last_stage_sees_four_pixels_a_side() -> None:
    network: Any = resnet18_small(7).eval()
    assert network.forward_features(torch.randn(1, 3, 32, 32)).shape == (1, 512, 4, 4)
    assert network.num_features == 512


def test_stages_say_how_far_they_reduce() -> None:
    network: Any = resnet18_small(7).eval()
    x = torch.randn(1, 3, 32, 32)
    found = {}
    for name, part in network.named_children():
        if name == "global_pool":
            break
        x = part(x)
        found[name] = 32 // x.shape[-1]
    assert {s["module"]: s["reduction"] for s in network.feature_info} == {
        name: found[name] for name in ("act1", "layer1", "layer2", "layer3", "layer4")
    }


def test_no_detector_stands_on_it() -> None:
    pytest.importorskip("torchvision")
    from batchformer.lab.models.faster_rcnn import faster_rcnn

    with pytest.raises(ValueError, match="stride 4, 8, 16 and 32, and this ResNet has 1, 2, 4, 8"):
        faster_rcnn(resnet18_small(7), 3)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    for module in resnet18_small(7).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
