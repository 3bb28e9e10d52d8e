"""A forgotten match is called by name; everything else behaves like a tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import attach, match
from batchformer.reminder import TwoStreamTensor, remember


def logits(rows: int = 8) -> Tensor:
    return remember(torch.randn(rows, 5, requires_grad=True) * 1.0)


@pytest.mark.parametrize(
    "criterion",
    [
        lambda out: F.cross_entropy(out, torch.zeros(4, dtype=torch.long)),
        lambda out: nn.CrossEntropyLoss(label_smoothing=0.1)(out, torch.zeros(4).long()),
        lambda out: F.binary_cross_entropy_with_logits(out, torch.zeros(4, 5)),
        lambda out: F.mse_loss(out, torch.zeros(4, 5)),
        lambda out: (-torch.zeros(4, 5) * F.log_softmax(out, dim=-1)).sum(-1).mean(),
        lambda out: F.cross_entropy(out.flatten(1).float(), torch.zeros(4, dtype=torch.long)),
        lambda out: F.gaussian_nll_loss(out, torch.zeros(4, 5), torch.ones(4, 5)),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_forgotten_match_is_named(criterion: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"batchformer\.match\(outputs, targets\)"):
        criterion(logits())


def test_a_stock_loop_that_forgets_it_is_told() -> None:
    model = attach(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), verbose=False)
    y = torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="8 rows for 4 samples"):
        F.cross_entropy(model(torch.randn(4, 6)), y)
    out = model(torch.randn(4, 6))
    F.cross_entropy(out, match(out, y)).backward()
    F.cross_entropy(model.eval()(torch.randn(4, 6)), y)


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError) as caught:
        logits() @ torch.zeros(3, 3)
    assert "batchformer" not in str(caught.value)


def test_results_are_plain_tensors_unless_they_still_await_a_loss() -> None:
    out = logits()
    assert type(out.flatten(1)) is TwoStreamTensor and type(out[:, :3]) is TwoStreamTensor
    loss = F.cross_entropy(out, torch.zeros(8, dtype=torch.long))
    assert type(loss) is Tensor
    assert type(out.detach()) is Tensor and type(out.argmax(1)) is Tensor
    assert type(out[:4]) is Tensor
    assert torch.equal(copy.deepcopy(out.detach()), out.detach())


def test_gradients_flow_as_through_a_tensor() -> None:
    x = torch.randn(8, 5, requires_grad=True)
    target = torch.zeros(8, dtype=torch.long)
    (plain,) = torch.autograd.grad(F.cross_entropy(x * 2, target), x)
    (marked,) = torch.autograd.grad(F.cross_entropy(remember(x * 2), target), x)
    assert torch.equal(plain, marked)


def test_a_compiled_loss_takes_it() -> None:
    target = torch.zeros(8, dtype=torch.long)
    # Before torch 2.8 the compiler traces into no tensor subclass: the loss is taken, as a break.
    whole = torch.__version__ >= "2.8"
    compiled = torch.compile(nn.CrossEntropyLoss(), backend="eager", fullgraph=whole)
    out = logits()
    torch.testing.assert_close(compiled(out, target), F.cross_entropy(out, target))


def test_only_what_awaits_a_gradient_is_marked() -> None:
    assert type(remember(torch.zeros(4, 2))) is Tensor
    assert type(remember(torch.zeros((), requires_grad=True) * 1)) is Tensor
    assert remember((1, 2)) == (1, 2)
