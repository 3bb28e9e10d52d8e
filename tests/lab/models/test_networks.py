"""Our networks against torchvision's and against networks written out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.models.networks import (
    BasicBlock,
    DigitsNet,
    ResNetCifar,
    digits16_net,
    digits_net,
    pad_shortcut,
    resnet10,
    resnet18_small,
    resnet32,
)
from batchformer.lab.models.ride import ride_resnet10

# The network for digits.


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    net = digits_net(10)
    loss = torch.nn.functional.cross_entropy(net(torch.randn(64, 1, 8, 8)), torch.arange(64) % 10)
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_side_of_the_images_is_a_choice() -> None:
    net = digits16_net(10).eval()
    assert net(torch.randn(3, 1, 16, 16)).shape == (3, 10)
    with pytest.raises(RuntimeError, match="shapes"):
        net(torch.randn(3, 1, 8, 8))
    with pytest.raises(ValueError, match="at least 4 pixels"):
        DigitsNet(10, side=3)


def test_the_empty_stage_has_no_state_and_its_place_is_after_the_first_pooling() -> None:
    torch.manual_seed(0)
    net = digits_net(10).eval()
    layers = {key.split(".")[0] for key in net.state_dict()}
    assert layers == {"conv1", "bn1", "conv2", "bn2", "hidden", "fc"}
    x, seen = torch.randn(3, 1, 8, 8), []
    before = net(x)
    net.layer1.append(nn.Identity())
    net.layer1[0].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert torch.equal(net(x), before)
    assert seen == [(3, 16, 4, 4)]


# ResNets on timm's class.


@pytest.mark.parametrize("make", [resnet10, resnet18_small, ride_resnet10])
def test_initial_weights(make: Any) -> None:
    torch.manual_seed(0)
    network = make(7)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()


@pytest.mark.parametrize("make", [resnet10, resnet18_small])
def test_they_compute_what_torchvision_computes(make: Any) -> None:
    torchvision = pytest.importorskip("torchvision")
    blocks = [1 if make is resnet10 else 2] * 4
    kind = torchvision.models.resnet.BasicBlock
    reference = torchvision.models.ResNet(kind, blocks, num_classes=7)
    if make is resnet18_small:
        reference.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        reference.maxpool = nn.Identity()
    network = make(7).eval()
    network.load_state_dict(reference.eval().state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(network(x), reference(x))


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


# ResNets for CIFAR.


def test_shortcut_of_an_odd_number_of_new_channels() -> None:
    x = torch.randn(1, 4, 2, 2)
    out = pad_shortcut(x, 7, 1)
    assert torch.equal(out[:, 1:5], x)
    assert not out[:, 0].any()
    assert not out[:, 5:].any()


def _reference_forward(net: ResNetCifar, x: Tensor) -> Tensor:
    """The network written out with functions of torch, in evaluation."""

    def conv_bn(x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, stride: int) -> Tensor:
        x = nn.functional.conv2d(x, conv.weight, stride=stride, padding=1)
        mean, var = bn.running_mean, bn.running_var
        assert mean is not None and var is not None
        x = (x - mean.view(-1, 1, 1)) / (var.view(-1, 1, 1) + 1e-5).sqrt()
        return x * bn.weight.view(-1, 1, 1) + bn.bias.view(-1, 1, 1)

    x = conv_bn(x, net.conv1, net.bn1, 1).clamp(min=0)
    for stage, layer in enumerate((net.layer1, net.layer2, net.layer3)):
        for index, block in enumerate(layer):
            assert isinstance(block, BasicBlock)
            stride = 2 if stage > 0 and index == 0 else 1
            out = conv_bn(x, block.conv1, block.bn1, stride).clamp(min=0)
            out = conv_bn(out, block.conv2, block.bn2, 1)
            if stride == 2:
                zeros = x.new_zeros(len(x), x.shape[1] // 2, *out.shape[2:])
                x = torch.cat([zeros, x[..., ::2, ::2], zeros], 1)
            x = (out + x).clamp(min=0)
    return x.flatten(2).mean(2) @ net.fc.weight.T + net.fc.bias


def test_forward_against_the_network_written_out() -> None:
    torch.manual_seed(0)
    net = resnet32(5, depth=14).double()
    net.train()
    net(torch.randn(8, 3, 16, 16, dtype=torch.float64))  # moves the running statistics
    net.eval()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(net(x), _reference_forward(net, x))


def test_kaiming_normal_weights() -> None:
    torch.manual_seed(0)
    net = resnet32(100)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.weight.numel() > 4000:
            fan_in = module.weight[0].numel()
            assert module.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)


def test_depth_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="6 n \\+ 2"):
        resnet32(10, depth=30)


@pytest.mark.parametrize("training", [False, True])
def test_it_scripts(training: bool) -> None:
    net = resnet32(5, depth=8).train(training)
    x = torch.randn(2, 3, 8, 8)
    scripted = torch.jit.script(copy.deepcopy(net))
    torch.testing.assert_close(scripted(x), net(x))


def test_it_compiles_whole() -> None:
    net = resnet32(5, depth=8)
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(copy.deepcopy(net), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
