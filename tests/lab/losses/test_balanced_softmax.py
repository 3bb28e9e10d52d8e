from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.long_tailed import BalancedSoftmax, balanced_softmax


def draw(seed: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits (N, K), hard targets (N,), soft targets (N, K) and counts (K,), in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    hard = torch.randint(k, (n,), generator=generator)
    soft = torch.rand(n, k, generator=generator, dtype=torch.float64)
    counts = torch.randint(1, 1300, (k,), generator=generator)
    return logits, hard, soft / soft.sum(dim=1, keepdim=True), counts


def brute_force(logits: Tensor, weights: Tensor, counts: Tensor) -> list[float]:
    """Per-sample loss with explicit n_c * exp(z_c), one number at a time."""
    losses = []
    for row, weight in zip(logits.tolist(), weights.tolist(), strict=True):
        mass = [n * math.exp(z) for n, z in zip(counts.tolist(), row, strict=True)]
        losses.append(
            -sum(
                w * math.log(m / sum(mass)) if w else 0.0 for w, m in zip(weight, mass, strict=True)
            )
        )
    return losses


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), k=st.integers(1, 6))
def test_equals_brute_force(seed: int, n: int, k: int) -> None:
    logits, hard, soft, counts = draw(seed, n, k)
    for targets, weights in ((hard, F.one_hot(hard, k)), (soft, soft)):
        expected = torch.tensor(brute_force(logits, weights, counts), dtype=torch.float64)
        torch.testing.assert_close(
            balanced_softmax(logits, targets, counts, reduction="none"), expected
        )
        torch.testing.assert_close(balanced_softmax(logits, targets, counts), expected.mean())


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_gradient(kind: str) -> None:
    logits, hard, soft, counts = draw(2, 4, 5)
    logits.requires_grad_()
    targets = hard if kind == "hard" else soft
    assert torch.autograd.gradcheck(
        lambda z: balanced_softmax(z, targets, counts, reduction="none"), (logits,)
    )


def test_half_precision_logits_are_summed_in_float32() -> None:
    _, hard, soft, _ = draw(4, 6, 4)
    counts = torch.tensor([70_000, 900, 30, 2])  # 70,000 is infinite in float16
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    for dtype in (torch.float16, torch.bfloat16):
        module = BalancedSoftmax(counts).to(dtype)
        for targets in (hard, soft.to(dtype)):
            loss = module(logits.to(dtype), targets)
            assert loss.dtype == torch.float32
            exact = targets if targets.ndim == 1 else targets.double()
            expected = balanced_softmax(logits.to(dtype).double(), exact, counts)
            torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


def test_an_empty_class_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"2 of 4 classes .*classes 1, 3.*allow_empty=True"):
        BalancedSoftmax([5, 0, 2, 0])


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_an_allowed_empty_class_is_as_if_absent(kind: str) -> None:
    logits, hard, soft, counts = draw(5, 6, 3)
    wide = torch.cat([logits, torch.full((6, 1), 9.0, dtype=torch.float64)], dim=1)
    wide.requires_grad_()
    loss = BalancedSoftmax([*counts.tolist(), 0], allow_empty=True)
    targets = hard if kind == "hard" else soft
    wide_targets = hard if kind == "hard" else F.pad(soft, (0, 1))
    value = loss(wide, wide_targets)
    value.backward()
    torch.testing.assert_close(value, balanced_softmax(logits, targets, counts))
    assert wide.grad is not None
    assert wide.grad.isfinite().all()
    assert (wide.grad[:, 3] == 0).all()
    assert (wide.grad[:, :3] != 0).all()


def test_a_target_in_an_empty_class_has_infinite_loss() -> None:
    for targets in (torch.tensor([1, 0]), torch.tensor([[0.9, 0.1], [1.0, 0.0]])):
        loss = balanced_softmax(torch.zeros(2, 2), targets, torch.tensor([4, 0]), reduction="none")
        assert loss.tolist() == [math.inf, 0.0]


def test_module_equals_function_and_keeps_counts_out_of_the_state() -> None:
    logits, hard, _, counts = draw(6, 6, 4)
    module = BalancedSoftmax(counts)
    torch.testing.assert_close(module(logits, hard), balanced_softmax(logits, hard, counts))
    assert module.state_dict() == {}
    assert [name for name, _ in module.named_buffers()] == ["class_counts"]
    before = counts.clone()
    counts += 1
    assert torch.equal(module.class_counts, before)
    assert repr(module) == "BalancedSoftmax(classes=4)"


@pytest.mark.parametrize(
    ("targets", "counts"),
    [((6,), (1,)), ((6,), (5,)), ((6, 1), (4,)), ((5,), (4,)), ((4,), (4,))],
)
def test_wrong_shapes_are_refused(targets: tuple[int, ...], counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="balanced_softmax needs"):
        balanced_softmax(torch.zeros(6, 4), torch.zeros(targets).long(), torch.ones(counts))


@pytest.mark.parametrize("targets", [torch.zeros(2).long(), torch.full((2, 2), 0.5)])
def test_unknown_reduction_is_refused(targets: Tensor) -> None:
    with pytest.raises(ValueError, match="average"):
        balanced_softmax(torch.zeros(2, 2), targets, torch.ones(2), reduction="average")  # type: ignore[arg-type]
