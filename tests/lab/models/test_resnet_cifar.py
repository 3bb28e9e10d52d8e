from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.kernels import available, disabled
from batchformer.lab.models.networks import BasicBlock, ResNetCifar, pad_shortcut, resnet32


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


def _step(net: ResNetCifar, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Loss, every gradient and every running statistic of one training step."""
    net.zero_grad()
    loss = F.cross_entropy(net(x).double(), y)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: p.grad for name, p in net.named_parameters()}
    found |= {name: b for name, b in net.named_buffers() if "running" in name}
    return {k: v.detach().cpu().double() for k, v in found.items() if v is not None} | {
        "loss": loss.detach().cpu()
    }


def _errors(
    depth: int, images: tuple[int, int], device: str, dtype: torch.dtype
) -> dict[str, float]:
    """Relative errors of a step with and without kernels against float64, over all that it gives.

    The name of each is that of what the step gives, after "kernels" or "stock".
    """
    n, size = images
    torch.manual_seed(0)
    net = resnet32(10, depth=depth).to(memory_format=torch.channels_last)
    x, y = torch.randn(n, 3, size, size), torch.randint(10, (n,))
    reference = _step(copy.deepcopy(net).double().to(device), x.double().to(device), y.to(device))
    x = x.to(device, memory_format=torch.channels_last)
    errors = {}
    for name in ("kernels", "stock"):
        arm = copy.deepcopy(net).to(device)
        with torch.autocast(device, dtype):
            if name == "stock":
                with disabled():
                    found = _step(arm, x, y.to(device))
            else:
                found = _step(arm, x, y.to(device))
        for key, value in reference.items():
            errors[f"{name} {key}"] = ((found[key] - value).norm() / value.norm()).item()
    return errors


def _judge(errors: dict[str, float]) -> None:
    """With kernels a step is as exact as without: each part nearly so, and all together."""
    keys = [key.removeprefix("stock ") for key in errors if key.startswith("stock ")]
    pairs = [(errors[f"kernels {key}"], errors[f"stock {key}"]) for key in keys]
    total, stock = (sum(e**2 for e in side) ** 0.5 for side in zip(*pairs, strict=True))
    assert 0 < total <= 1.5 * stock, errors
    worst = max(stock_error for _, stock_error in pairs)
    assert max(error for error, _ in pairs) <= 1.5 * worst, errors


def test_a_step_with_interpreted_kernels_is_as_exact_as_without() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    _judge(json.loads(run.stdout))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_with_compiled_kernels_is_as_exact_as_without(dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    _judge(_errors(32, (128, 32), "cuda", dtype))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_block_of_compiled_kernels_repeats_to_the_bit() -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    block = BasicBlock(16, 16, 1).to("cuda").to(memory_format=torch.channels_last)
    x = torch.randn(128, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last).requires_grad_()

    def gradients() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = block(x).float().square().mean()
        return list(torch.autograd.grad(loss, [x, *block.parameters()]))

    assert all(torch.equal(a, b) for a, b in zip(gradients(), gradients(), strict=True))


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


if __name__ == "__main__":
    real = available.unsupported_reason
    off_the_device = "the tensor is not on a CUDA device"
    available.unsupported_reason = lambda x: None if real(x) == off_the_device else real(x)
    errors = _errors(8, (4, 8), "cpu", torch.float16)
    assert "batchformer.lab.models.kernels.conv3x3" in sys.modules
    print(json.dumps(errors))
