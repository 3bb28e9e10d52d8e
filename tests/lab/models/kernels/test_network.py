"""A step of a whole ResNet-32 with our kernels, against float64 and against torch's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.kernels import available, disabled
from batchformer.lab.models.networks import BasicBlock, ResNetCifar, resnet32

pytest.importorskip("triton")

from batchformer.lab.models.kernels.conv3x3 import product

KERNELS = "batchformer.lab.models.kernels"
ON_GPU = torch.cuda.is_available()


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


@pytest.mark.gpu
def test_a_step_with_interpreted_kernels_is_as_exact_as_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if ON_GPU:
        pytest.skip("compiled, the kernels are those of the next test")
    # Few large programs: each costs the interpreter milliseconds.
    monkeypatch.setattr(f"{KERNELS}.batch_norm.SUM_PROGRAMS", 2)
    monkeypatch.setattr(f"{KERNELS}.conv3x3.SUM_COLUMNS", 8)
    real, elsewhere = available.unsupported_reason, "the tensor is not on a CUDA device"
    monkeypatch.setattr(
        available, "unsupported_reason", lambda x: None if real(x) == elsewhere else real(x)
    )
    taken: list[Tensor] = []
    monkeypatch.setattr(
        f"{KERNELS}.conv3x3.product",
        lambda *args, **how: taken.append(args[0]) or product(*args, **how),
    )
    _judge(_errors(8, (2, 8), "cpu", torch.float16))
    assert taken, "the kernels were used"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_with_compiled_kernels_is_as_exact_as_without(dtype: torch.dtype) -> None:
    _judge(_errors(32, (128, 32), "cuda", dtype))


@pytest.mark.gpu
def test_a_block_of_compiled_kernels_repeats_to_the_bit() -> None:
    torch.manual_seed(0)
    block = BasicBlock(16, 16, 1).to("cuda").to(memory_format=torch.channels_last)
    x = torch.randn(128, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last).requires_grad_()

    def gradients() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = block(x).float().square().mean()
        return list(torch.autograd.grad(loss, [x, *block.parameters()]))

    assert all(torch.equal(a, b) for a, b in zip(gradients(), gradients(), strict=True))
