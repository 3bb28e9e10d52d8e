"""A forgotten match is called by name; everything else behaves like a tensor."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import attach, match, split
from batchformer.reminder import COMPILER_KNOWS_SUBCLASSES, TwoStreamTensor, remember

Y = torch.tensor([0, 1, 2, 3])


def timm_accuracy() -> Callable[..., object]:
    return pytest.importorskip("timm.utils").accuracy  # type: ignore[no-any-return]


def torchmetrics_accuracy() -> Callable[..., object]:
    metrics = pytest.importorskip("torchmetrics.classification")
    return metrics.MulticlassAccuracy(num_classes=5)  # type: ignore[no-any-return]


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
        # What would go on without a word, and train the plain rows alone, or all pairs of rows.
        lambda out: -F.log_softmax(out, 1)[torch.arange(4), Y].mean(),
        lambda out: -F.log_softmax(out, 1)[range(4), Y].mean(),
        lambda out: -F.log_softmax(out, 1)[list(range(4)), Y.tolist()].mean(),
        lambda out: -F.log_softmax(out, 1).gather(1, Y[:, None]).mean(),
        lambda out: -F.log_softmax(out, 1).gather(dim=-1, index=Y[:, None]).mean(),
        lambda out: -torch.gather(F.log_softmax(out, 1), 1, Y.unsqueeze(1)).mean(),
        lambda out: ((out[:, :1] - Y) ** 2).mean(),
        lambda out: ((Y - out[:, :1]) ** 2).mean(),
        lambda out: F.mse_loss(out[:, :1], Y.float()),
        lambda out: F.mse_loss(Y.float(), out[:, :1]),
        lambda out: F.l1_loss(out[:, :1], Y.float()),
        lambda out: F.smooth_l1_loss(out[:, :1], Y.float()),
        lambda out: F.huber_loss(out[:, :1], target=Y.float()),
        lambda out: ((out[:, 0] - Y) ** 2).mean(),
        # Metrics: what has no gradient remembers too.
        lambda out: (out.argmax(1) == Y).float().mean(),
        lambda out: (out.detach().max(1)[1] == Y).sum(),
        lambda out: (out.softmax(1).topk(2).indices == Y[:, None]).any(1).float().mean(),
        lambda out: ((out[:, :1].detach() > 0) == Y).float().mean(),
        lambda out: timm_accuracy()(out, Y, topk=(1, 2)),
        lambda out: torchmetrics_accuracy()(out, Y),
        lambda out: torchmetrics_accuracy()(out.detach().softmax(1), Y),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_forgotten_match_is_named(criterion: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"batchformer\.match\(outputs, targets\)"):
        criterion(logits())


@pytest.mark.parametrize(
    "use",
    [
        lambda out: out[torch.arange(4)],
        lambda out: out[torch.tensor([0, 1]), torch.tensor([2, 2])],
        lambda out: out[torch.arange(8), torch.zeros(8).long()],
        lambda out: out[:, torch.arange(4)],
        lambda out: out[None, :, 0],
        lambda out: out[..., 0],
        lambda out: out[torch.ones(8, dtype=torch.bool), 0],
        lambda out: out.gather(1, torch.zeros(8, 1).long()),
        lambda out: out.gather(0, torch.zeros(4, 5).long()),
        lambda out: out.mean(1, keepdim=True) - out,
        lambda out: out[:, :1] * torch.ones(4),
        lambda out: out - out.mean(0),
        lambda out: out[:4][torch.arange(4), Y],
        lambda out: F.mse_loss(out, torch.zeros(8, 5)),
        lambda out: (out[:4].argmax(1) == Y).sum(),
    ],
)
def test_what_pairs_no_targets_is_left_alone(use: Callable[[Tensor], Tensor]) -> None:
    out = logits()
    assert torch.equal(use(out), use(out.as_subclass(Tensor)))


@pytest.mark.skipif(not COMPILER_KNOWS_SUBCLASSES, reason="the compiler traces no subclass")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_reminds_as_well(backend: str) -> None:
    torch.compiler.reset()
    model = attach(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5)), dropout=0.0, verbose=False)
    compiled, x = torch.compile(model, backend=backend, fullgraph=True), torch.randn(4, 6)
    out = compiled(x)
    torch.testing.assert_close(out.detach(), model(x).detach())
    for criterion in (
        lambda: F.cross_entropy(compiled(x), Y),
        lambda: -F.log_softmax(compiled(x), 1)[torch.arange(4), Y].mean(),
        lambda: (compiled(x).argmax(1) == Y).float().mean(),
    ):
        with pytest.raises((ValueError, RuntimeError), match="8 rows for 4 samples"):
            criterion()
    F.cross_entropy(out, match(out, Y)).backward()
    assert type(compiled.eval()(x)) is Tensor


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


def test_what_keeps_the_rows_keeps_the_memory() -> None:
    out = logits()
    assert type(out.flatten(1)) is TwoStreamTensor and type(out[:, :3]) is TwoStreamTensor
    assert type(out.detach()) is TwoStreamTensor and type(out.argmax(1)) is TwoStreamTensor
    loss = F.cross_entropy(out, torch.zeros(8, dtype=torch.long))
    assert type(loss) is Tensor
    assert type(out[:4]) is Tensor and type(split(out).plain) is Tensor
    assert type(out.mean(0)) is Tensor and type(out.as_subclass(Tensor)) is Tensor


def test_copies_and_files_hold_an_ordinary_tensor() -> None:
    out = logits().detach()
    buffer = io.BytesIO()
    torch.save({"logits": out}, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(out), torch.load(buffer, weights_only=True)["logits"]):
        assert type(twin) is Tensor and torch.equal(twin, out)
    assert out.numpy().shape == (8, 5) and len(out.tolist()) == 8


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
