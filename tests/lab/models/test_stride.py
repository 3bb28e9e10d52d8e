"""Strides moved between convolutions, against a ResNet written with slices."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.models import resnet as timms
from torch import Tensor, nn
from torch.nn.functional import conv2d

from batchformer.lab.models.build import build_model
from batchformer.lab.models.weights import Place, fit_weights, move_stride


def of_timm(**options: Any) -> Any:
    """A narrow ResNet of one or two bottlenecks a stage."""
    sizes: dict[str, Any] = {"channels": (4, 8, 8, 12), "num_classes": 5, **options}
    return timms.ResNet(timms.Bottleneck, (2, 1, 2, 1), zero_init_last=False, **sizes)


def of_torchvision() -> Any:
    kind = torchvision.models.resnet.Bottleneck
    return torchvision.models.ResNet(kind, [1, 1, 2, 1], num_classes=5, width_per_group=4)


NETWORKS = {
    "timm": of_timm,
    "timm, groups": lambda: of_timm(cardinality=4, base_width=32),
    "timm, pooled shortcut": lambda: of_timm(avg_down=True),
    "timm, dilated": lambda: of_timm(output_stride=16),
    "torchvision": of_torchvision,
}


def drawn(make: Any) -> Any:
    """A network in double precision whose normalisation does something."""
    torch.manual_seed(3)
    network = make().double().eval()
    norms: list[Any] = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.weight.data.uniform_(0.5, 1.5)
        norm.bias.data.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return network


def normalised(x: Tensor, norm: Any) -> Tensor:
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    done: Tensor = x * scale[:, None, None] + shift[:, None, None]
    return done


def first_layout(block: Any, x: Tensor) -> Tensor:
    """The bottleneck of the first ResNets: every other row and column, then no stride at all."""
    seen = x[:, :, :: block.stride, :: block.stride]
    y = normalised(conv2d(seen, block.conv1.weight), block.bn1).relu()
    wide = block.conv2.dilation
    y = conv2d(y, block.conv2.weight, padding=wide, dilation=wide, groups=block.conv2.groups)
    y = normalised(y, block.bn2).relu()
    y = normalised(conv2d(y, block.conv3.weight), block.bn3)
    return (y + (x if block.downsample is None else block.downsample(x))).relu()


def whole(network: Any, x: Tensor) -> Tensor:
    x = network.maxpool(normalised(network.conv1(x), network.bn1).relu())
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        for block in stage:
            x = first_layout(block, x)
    logits: Tensor = network.fc(x.mean((2, 3)))
    return logits


@pytest.mark.parametrize("side", [64, 75])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_is_that_of_the_first_resnets(name: str, side: int) -> None:
    network = drawn(NETWORKS[name])
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    shapes = {key: value.shape for key, value in network.state_dict().items()}
    with torch.no_grad():
        stock, expected = network(x), whole(network, x)
        for _ in range(2):  # doing it again changes nothing
            move_stride(network, "1x1")
            torch.testing.assert_close(network(x), expected, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(stock, expected, rtol=1e-3)
        for _ in range(2):
            move_stride(network, "3x3")
            assert torch.equal(network(x), stock)
    assert shapes == {key: value.shape for key, value in network.state_dict().items()}


@pytest.mark.parametrize("make", [timm.create_model, torchvision.models.get_model])
def test_resnet50_has_its_three_strides_moved(make: Any) -> None:
    network = make("resnet50")
    move_stride(network, "1x1")
    strides = {
        name: module.stride
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d) and module.stride != (1, 1) and "downsample" not in name
    }
    assert strides == {
        "conv1": (2, 2),
        **{f"layer{stage}.0.conv1": (2, 2) for stage in (2, 3, 4)},
    }


def test_experts_are_made_of_bottlenecks_too() -> None:
    network: Any = build_model("ride_resnet50", 3, experts=2)
    move_stride(network, "1x1")
    blocks = [network.shared.layer2[0], *(branch.layer4[0] for branch in network.branches)]
    assert all(b.conv1.stride == (2, 2) and b.conv2.stride == (1, 1) for b in blocks)


def test_weights_of_either_layout_fit() -> None:
    """Why the layout has to be written down: nothing else tells the two apart."""
    network, other = of_timm(), of_timm()
    move_stride(network, "1x1")
    assert fit_weights(network, other.state_dict(), "file").classifier


@pytest.mark.parametrize("to", ["1x1", "3x3"])
@pytest.mark.parametrize("name", ["resnet18", "resnet32", "vit_tiny_patch16_224"])
def test_networks_without_bottlenecks_are_refused(name: str, to: Place) -> None:
    with pytest.raises(ValueError, match=r"no bottlenecks of timm's or torchvision's.*--model"):
        move_stride(build_model(name, 3), to)


@pytest.mark.parametrize("layer", [nn.AvgPool2d, timm.layers.BlurPool2d])
def test_a_stride_of_another_layer_is_refused_and_nothing_moves(layer: type[nn.Module]) -> None:
    network: Any = of_timm(aa_layer=layer)
    before = [m.stride for m in network.modules() if isinstance(m, nn.Conv2d)]
    with pytest.raises(ValueError, match=r"strides by 2, its convolutions by 1.*anti-aliasing"):
        move_stride(network, "1x1")
    assert before == [m.stride for m in network.modules() if isinstance(m, nn.Conv2d)]


def test_there_are_two_places() -> None:
    with pytest.raises(ValueError, match="not '7x7'"):
        move_stride(of_timm(), "7x7")  # type: ignore[arg-type]
