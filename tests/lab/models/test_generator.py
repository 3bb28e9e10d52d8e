"""CE-GZSL's networks: generator, critic, embedding, and the comparator without all pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.models.generator import (
    Comparator,
    Critic,
    Embedding,
    Generator,
    pairwise_scores,
    with_small_weights,
)

# Generator and critic.


def test_initial_weights() -> None:
    torch.manual_seed(0)
    nets = Generator(1024, 1024, 4096, 2048), Critic(2048, 1024, 4096)
    shapes = [[tuple(p.shape) for p in net.parameters()] for net in nets]
    assert shapes[0] == [(4096, 2048), (4096,), (2048, 4096), (2048,)]
    assert shapes[1] == [(4096, 3072), (4096,), (1, 4096), (1,)]
    for net in nets:
        for parameter in net.parameters():
            if parameter.ndim == 1:
                assert not parameter.any()
            else:
                assert parameter.std().item() == pytest.approx(0.02, rel=0.05)
                assert abs(parameter.mean().item()) < 0.002
    without = with_small_weights(nn.Sequential(nn.Linear(300, 300, bias=False), nn.ReLU()))
    assert next(without.parameters()).std().item() == pytest.approx(0.02, rel=0.05)


def test_the_generator_by_hand() -> None:
    net = Generator(attributes=3, noise=2, hidden=7, features=5).double()
    noise, attributes = torch.randn(4, 2).double(), torch.randn(4, 3).double()
    (w1, b1), (w2, b2) = ((m.weight, m.bias) for m in (net.hidden, net.output))
    hidden = noise @ w1[:, :2].T + attributes @ w1[:, 2:].T + b1
    expected = (torch.where(hidden > 0, hidden, 0.2 * hidden) @ w2.T + b2).clamp(min=0)
    torch.testing.assert_close(net(noise, attributes), expected)


def test_the_critic_by_hand() -> None:
    net = Critic(features=5, attributes=3, hidden=7).double()
    x, attributes = torch.randn(4, 5).double(), torch.randn(4, 3).double()
    hidden = x @ net.hidden.weight[:, :5].T + attributes @ net.hidden.weight[:, 5:].T
    expected = torch.where(hidden > 0, hidden, 0.2 * hidden) @ net.output.weight[0]
    torch.testing.assert_close(net(x, attributes), expected)


# Embedding and comparator.


def naive(net: Comparator, h: Tensor, attributes: Tensor) -> Tensor:
    """Every pair [h, a] as one row of a single hidden layer."""
    weight = torch.cat((net.of_embedding.weight, net.of_attributes.weight), dim=1)
    rows = torch.cat((h.repeat_interleave(len(attributes), 0), attributes.repeat(len(h), 1)), dim=1)
    hidden = F.leaky_relu(F.linear(rows, weight, net.of_embedding.bias), 0.2)
    return net.output(hidden).view(len(h), len(attributes))  # type: ignore[no-any-return]


def inputs(n: int, k: int) -> tuple[Comparator, Tensor, Tensor]:
    net = Comparator(embedding=5, attributes=3, hidden=7).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    h, attributes = torch.randn(n, 5).double(), torch.randn(k, 3).double()
    return net, h.requires_grad_(), attributes.requires_grad_()


def test_scores_and_gradients_equal_the_concatenation() -> None:
    torch.manual_seed(0)
    net, h, attributes = inputs(6, 4)
    expected, got = naive(net, h, attributes), net(h, attributes)
    torch.testing.assert_close(got, expected)
    towards = torch.randn(6, 4).double()
    leaves = [h, attributes, *net.parameters()]
    wanted = torch.autograd.grad(expected, leaves, towards)
    for one, other in zip(torch.autograd.grad(got, leaves, towards), wanted, strict=True):
        torch.testing.assert_close(one, other)


@settings(max_examples=25)
@given(n=st.integers(1, 9), k=st.integers(1, 5), at_once=st.integers(1, 200))
def test_the_cut_changes_nothing(n: int, k: int, at_once: int) -> None:
    torch.manual_seed(n + 10 * k)
    leaves = [torch.randn(*size).double().requires_grad_() for size in ((n, 6), (k, 6), (6,))]
    samples, classes, weight = leaves
    expected = F.leaky_relu(samples.unsqueeze(1) + classes, 0.2) @ weight
    got = pairwise_scores(samples, classes, weight, at_once)
    torch.testing.assert_close(got, expected)
    towards = torch.randn(n, k).double()
    wanted = torch.autograd.grad(expected, leaves, towards)
    for one, other in zip(torch.autograd.grad(got, leaves, towards), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_slope_at_zero_is_that_of_torch() -> None:
    samples = torch.tensor([[1.0, -1.0]], requires_grad=True)
    classes = torch.tensor([[-1.0, 1.0]])
    (got,) = torch.autograd.grad(pairwise_scores(samples, classes, torch.ones(2)).sum(), samples)
    (wanted,) = torch.autograd.grad(F.leaky_relu(samples + classes, 0.2).sum(), samples)
    assert torch.equal(got, wanted)


def test_nothing_of_the_size_of_all_pairs_is_made() -> None:
    """The largest tensor that any operation makes, forward and backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out,) if isinstance(t, Tensor))
            return out

    samples = torch.randn(64, 32, requires_grad=True)
    classes = torch.randn(10, 32, requires_grad=True)
    weight = torch.randn(32, requires_grad=True)
    with Watch():  # type: ignore[no-untyped-call]
        pairwise_scores(samples, classes, weight, at_once=8 * 10 * 32).sum().backward()  # type: ignore[no-untyped-call]
    assert max(sizes) == 8 * 10 * 32, "and not 64 * 10 * 32"
    assert samples.grad is not None and weight.grad is not None


def test_half_precision_is_widened() -> None:
    net = Comparator(8, 3, 16)
    h, attributes = torch.randn(5, 8), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        scores = net(h, attributes)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, net(h, attributes), atol=2e-2, rtol=2e-2)
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in net.parameters())


def test_the_embedding() -> None:
    torch.manual_seed(0)
    net = Embedding(features=300, hidden=200, dim=100)
    assert net.hidden.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert net.output.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not net.hidden.bias.any() and not net.output.bias.any()
    x = torch.randn(7, 300)
    h = net(x)
    torch.testing.assert_close(h, (x @ net.hidden.weight.T).clamp(min=0))
    z = net.direction(h)
    raw = h @ net.output.weight.T
    torch.testing.assert_close(z, raw / raw.square().sum(1, keepdim=True).sqrt())
