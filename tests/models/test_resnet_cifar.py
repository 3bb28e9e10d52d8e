from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from batchformer.models.resnet_cifar import BasicBlock, ResNetCifar, pad_shortcut, resnet32


def _parameters(num_classes: int, in_channels: int, widths: tuple[int, ...], blocks: int) -> int:
    """Counted layer by layer: 3x3 kernels, two numbers per normalised channel, the classifier."""
    total, channels = 9 * in_channels * widths[0] + 2 * widths[0], widths[0]
    for width in widths:
        for _ in range(blocks):
            total += 9 * channels * width + 9 * width * width + 4 * width
            channels = width
    return total + widths[-1] * num_classes + num_classes


@pytest.mark.parametrize(
    ("num_classes", "in_channels", "widths", "depth"),
    [(10, 3, (16, 32, 64), 32), (100, 3, (16, 32, 64), 32), (7, 1, (8, 12, 19), 8)],
)
def test_parameter_count(
    num_classes: int, in_channels: int, widths: tuple[int, int, int], depth: int
) -> None:
    net = resnet32(num_classes, in_channels, widths, depth)
    count = sum(p.numel() for p in net.parameters())
    assert count == _parameters(num_classes, in_channels, widths, (depth - 2) // 6)


def test_published_size() -> None:
    assert sum(p.numel() for p in resnet32(10).parameters()) == 464_154


def test_shortcut_pads_a_quarter_on_each_side() -> None:
    x = torch.randn(2, 16, 6, 8)
    out = pad_shortcut(x, 32, 2)
    expected = torch.zeros(2, 32, 3, 4)
    for channel in range(16):
        for row in range(3):
            for column in range(4):
                expected[:, 8 + channel, row, column] = x[:, channel, 2 * row, 2 * column]
    assert torch.equal(out, expected)


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
        assert mean is not None
        assert var is not None
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


def test_contract() -> None:
    net = resnet32(100).eval()
    x = torch.randn(2, 3, 32, 32)
    features = net.forward_features(x)
    assert features.shape == (2, net.num_features) == (2, 64)
    assert net.get_classifier() is net.fc
    assert torch.equal(net.forward_head(features, pre_logits=True), features)
    assert torch.equal(net.forward_head(features), net.fc(features))
    assert torch.equal(net(x), net.fc(features))


def test_depth_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="6 n \\+ 2"):
        resnet32(10, depth=30)
