"""The kernels over all pairs against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
#: Samples, classes, channels: below a tile, more than one, none of them a multiple of it.
SIZES = [(5, 3, 7), (17, 18, 20), (3, 21, 130)]
if ON_GPU:
    SIZES += [(2048, 150, 2048), (4096, 150, 2048), (64, 1000, 512)]


def inputs(n: int, k: int, w: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(n + k + w)
    sizes = ((n, w), (k, w), (w,), (n, k))
    a, b, weight, gradient = (torch.randn(*size, device=DEVICE) for size in sizes)
    return a, b, weight, gradient


def relative(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference over that of the exact tensor."""
    return float((found.double() - exact).norm() / exact.norm())


def activations(a: Tensor, b: Tensor) -> Tensor:
    return a.double()[:, None] + b.double()


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_scores(size: tuple[int, int, int]) -> None:
    from batchformer.lab.models.kernels.pairwise import scores

    a, b, weight, _ = inputs(*size)
    expected = torch.cat(
        [F.leaky_relu(activations(part, b), 0.2) @ weight.double() for part in torch.split(a, 64)]
    )
    assert relative(scores(a, b, weight, 0.2), expected) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("programs", [1, 1024])
def test_sums_of_both_sets(
    size: tuple[int, int, int],
    programs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from batchformer.lab.models.kernels import pairwise

    monkeypatch.setattr(pairwise, "PROGRAMS", programs)
    a, b, _, gradient = inputs(*size)
    by_sample, by_class = [], torch.zeros(len(b), size[2], dtype=torch.float64, device=DEVICE)
    for part, cut in zip(torch.split(a, 64), torch.split(gradient.double(), 64), strict=True):
        # In float32 as the kernel decides it: a sum next to zero has its sign there.
        above = (part[:, None] + b > 0).double()
        by_sample.append(torch.einsum("nk,nkw->nw", cut, above))
        by_class += torch.einsum("nk,nkw->kw", cut, above)
    assert relative(pairwise.sums_above_zero(a, b, gradient), torch.cat(by_sample)) < 1e-5
    assert relative(pairwise.sums_above_zero(b, a, gradient.T), by_class) < 1e-5


@pytest.mark.gpu
def test_the_comparator_takes_them_compiled_and_they_change_nothing() -> None:
    from batchformer.kernels.available import disabled
    from batchformer.lab.models.generator import pairwise_scores

    a, b, weight, towards = inputs(300, 50, 512)
    leaves = [leaf.requires_grad_() for leaf in (a, b, weight)]
    with torch.profiler.profile() as seen:
        got = pairwise_scores(a, b, weight)
    assert any("_scores" in event.key for event in seen.key_averages())
    ours = torch.autograd.grad(got, leaves, towards)
    with disabled():
        expected = pairwise_scores(a, b, weight)
        theirs = torch.autograd.grad(expected, leaves, towards)
    for one, other in zip((got, *ours), (expected, *theirs), strict=True):
        assert relative(one, other.double()) < 1e-5
