"""A forgotten match is called by name; everything else behaves like a tensor."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from batchformer import attach, match, split, stream_loss
from batchformer.plug.two_stream_tensor import COMPILER_MARKS, TwoStreamTensor, mark_two_streams

Y = torch.tensor([0, 1, 2, 3])
SIGN = torch.tensor([1.0, -1.0, -1.0, 1.0])


def timm_accuracy() -> Callable[..., object]:
    return pytest.importorskip("timm.utils").accuracy  # type: ignore[no-any-return]


def torchmetrics_accuracy() -> Callable[..., object]:
    metrics = pytest.importorskip("torchmetrics.classification")
    return metrics.MulticlassAccuracy(num_classes=5)  # type: ignore[no-any-return]


def logits(rows: int = 8) -> Tensor:
    return mark_two_streams(torch.randn(rows, 5, requires_grad=True) * 1.0)


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
        # Positions in one axis with the rows: tokens, pixels.
        lambda out: F.cross_entropy(out.view(-1, 1), torch.zeros(4, 5).long().view(-1)),
        lambda out: F.cross_entropy(out[..., None].flatten(0, 1).double(), torch.zeros(20).long()),
        lambda out: -out[..., None].reshape(-1, 1).log_softmax(1)[range(20), [0] * 20].mean(),
        lambda out: (out.reshape(-1) > 0) == torch.zeros(20),
        # What would go on without a word, and train the plain rows alone, or all pairs of rows.
        lambda out: -F.log_softmax(out, 1)[torch.arange(4), Y].mean(),
        lambda out: -F.log_softmax(out, 1)[range(4), Y].mean(),
        lambda out: -F.log_softmax(out, 1)[list(range(4)), Y.tolist()].mean(),
        lambda out: -F.log_softmax(out, 1).gather(1, Y[:, None]).mean(),
        lambda out: -F.log_softmax(out, 1).gather(dim=-1, index=Y[:, None]).mean(),
        lambda out: -torch.gather(F.log_softmax(out, 1), 1, Y.unsqueeze(1)).mean(),
        lambda out: torch.gather(out, 0, torch.arange(4)[:, None].expand(4, 5)),
        lambda out: F.mse_loss(out, torch.zeros_like(out).scatter_(1, Y[:, None], 1.0)),
        lambda out: F.mse_loss(out, torch.zeros_like(out).scatter(1, index=Y[:, None], value=1.0)),
        lambda out: out - torch.zeros_like(out).scatter_add(1, Y[:, None], torch.ones(4, 1)),
        lambda out: torch.zeros_like(out).__setitem__((torch.arange(4), Y), 1.0),
        # Losses, summed or averaged by groups.
        lambda out: torch.zeros(4).scatter_add(0, Y, out.logsumexp(1)),
        lambda out: torch.zeros(4).scatter_reduce(0, index=Y, src=out[:, 0], reduce="mean"),
        lambda out: ((out[:, :1] - Y) ** 2).mean(),
        lambda out: ((Y - out[:, :1]) ** 2).mean(),
        lambda out: F.mse_loss(out[:, :1], Y.float()),
        lambda out: F.mse_loss(Y.float(), out[:, :1]),
        lambda out: F.l1_loss(out[:, :1], Y.float()),
        lambda out: F.smooth_l1_loss(out[:, :1], Y.float()),
        lambda out: F.huber_loss(out[:, :1], target=Y.float()),
        lambda out: ((out[:, 0] - Y) ** 2).mean(),
        lambda out: F.poisson_nll_loss(out[:, :1], Y.float()),
        lambda out: nn.PoissonNLLLoss(reduction="none")(out[:, :1], Y.float()),
        lambda out: F.kl_div(out[:, :1], Y.float(), reduction="sum"),
        lambda out: F.hinge_embedding_loss(out[:, :1], SIGN),
        lambda out: F.multilabel_soft_margin_loss(out[:, :1], SIGN),
        lambda out: torch.dist(out[:, :1], Y.float()),
        # A loss written by hand pairs every row with every target until its mean is taken.
        lambda out: F.relu(1 - SIGN * out[:, :1]).mean(),
        lambda out: (1 - out[:, :1] * SIGN).clamp(min=0).sum(),
        lambda out: torch.log1p(torch.exp(-SIGN * out[:, :1])).mean(),
        lambda out: (out[:, :1].exp() - Y * out[:, :1]).mean(),
        lambda out: -(Y * F.logsigmoid(out[:, :1]) + (1 - Y) * F.logsigmoid(-out[:, :1])).mean(),
        lambda out: torch.where(SIGN > 0, out[:, :1], -out[:, :1]).mean(),
        lambda out: torch.where(SIGN > 0, F.softplus(-out[:, :1]), 0.0).sum(dtype=torch.float64),
        # Metrics: what has no gradient remembers too.
        lambda out: (out.argmax(1) == Y).float().mean(),
        lambda out: (out.detach().max(1)[1] == Y).sum(),
        lambda out: (torch.max(out.data, 1)[1] == Y.data).sum(),
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
        lambda out: out.scatter(1, match(out, Y)[:, None], 1.0),
        lambda out: out.scatter(0, torch.zeros(4, 5).long(), 1.0),
        lambda out: out.scatter_add(1, match(out, Y)[:, None], torch.ones(8, 1)),
        lambda out: torch.zeros(4).scatter_add(0, match(out, Y), out[:, 0]),
        lambda out: out.mean(1, keepdim=True) - out,
        lambda out: out[:, :1] * torch.ones(4),
        lambda out: out - out.mean(0),
        lambda out: out[:4][torch.arange(4), Y],
        lambda out: F.mse_loss(out, torch.zeros(8, 5)),
        lambda out: (out[:4].argmax(1) == Y).sum(),
        # Targets of the right length and shape.
        lambda out: F.poisson_nll_loss(out[:, 0], match(out, Y).float()),
        lambda out: F.poisson_nll_loss(out[:, :1], match(out, Y[:, None]).float()),
        lambda out: F.relu(1 - match(out, SIGN) * out[:, 0]).mean(),
        lambda out: F.relu(1 - match(out, SIGN[:, None]) * out[:, :1]).mean(),
        lambda out: F.relu(1 - SIGN * split(out).plain[:, 0]).mean(),
        lambda out: torch.where(match(out, SIGN) > 0, out[:, 0], -out[:, 0]).mean(),
        # As many classes, thresholds or scales as samples, by chance.
        lambda out: (out[:, :4].amax(1, keepdim=True) * torch.ones(4) * out[:, :4]).mean(),
        lambda out: (out[:, :1] * torch.arange(4.0)).softmax(1)[range(8), [*range(4)] * 2].mean(),
        lambda out: (out[:, :1] * torch.arange(4.0)).sum(1).mean(),
        lambda out: torch.where(SIGN > 0, out[:, :4], 0.0).mean(),
        lambda out: (nn.Parameter(torch.arange(4.0)) - out[:, :1]).sigmoid().mean(),
        lambda out: (nn.Parameter(torch.arange(4.0)) * out[:, :1]).tanh().mean(),
        # The streams are halves.
        lambda out: out.view(2, 4, 5).mean(0),
        lambda out: out.reshape(2, -1, 5),
        lambda out: out.unflatten(0, (2, 4)),
        lambda out: out.unflatten(1, (1, 5)),
        lambda out: out.view(torch.int32),
        lambda out: out[:, :4].unflatten(1, (2, 2)),
        lambda out: out.reshape(-1),
        lambda out: out.view(8, 1, 5),
        # There and back.
        lambda out: out[:, :2].reshape(-1, 1).sigmoid().view(8, 2),
        lambda out: out[:, :4].reshape(-1, 2).sigmoid().view(8, -1),
        lambda out: out.mT.reshape(-1).view(20, 2),
        lambda out: F.cross_entropy(out.view(-1, 1), match(out, Y.new_zeros(4, 5)).view(-1)),
        lambda out: out.mT.reshape(4, 10),
        # Two rows for each sample: four samples, plain and mixed.
        lambda out: out.view(-1, 2, 5).mean(1),
    ],
)
def test_what_pairs_no_targets_is_left_alone(use: Callable[[Tensor], Tensor]) -> None:
    out = logits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(use(out), use(out.as_subclass(Tensor)))


@pytest.mark.parametrize(
    "reshape",
    [
        lambda out, rows: out.view(rows, -1),
        lambda out, rows: out.reshape((rows, 10)),
        lambda out, rows: torch.reshape(out, shape=(rows, -1)),
        lambda out, rows: out.argmax(1).view(rows, 2),
        lambda out, rows: out.reshape(rows, 2, 5).mean(1),
        lambda out, rows: out.view(rows, 2, -1).mean(1),
        lambda out, rows: out.unflatten(0, (rows, 2)),
        lambda out, rows: out.unflatten(dim=-2, sizes=(rows, -1)),
    ],
)
def test_a_reshape_that_joins_different_samples_is_named(
    reshape: Callable[[Tensor, int], Tensor],
) -> None:
    with pytest.raises(RuntimeError, match=r"rows i and 3 \+ i belong to sample i.*split"):
        reshape(logits(6), 3)
    out = reshape(logits(6).as_subclass(Tensor), 3)
    if out.shape[1] == 2 or out.shape == (3, 5):
        # An even N may also be two rows for each of N / 2 samples: a warning that says how.
        with pytest.warns(UserWarning, match=r"rows i and 4 \+ i .* reshape to \(-1, 2, \.\.\.\)"):
            reshape(logits(8), 4)
    else:
        with pytest.raises(RuntimeError, match=r"rows i and 4 \+ i belong to sample i"):
            reshape(logits(8), 4)
    reshape(logits(4), 2)  # (2, 2, K) is halves


@pytest.mark.parametrize(
    "cut",
    [
        lambda out: out.chunk(3),
        lambda out: torch.tensor_split(out, 3),
        lambda out: out.view(3, -1, 5),
        lambda out: out.unflatten(0, (3, -1)),
    ],
)
def test_three_roles_in_one_call_are_no_thirds_of_both_streams(
    cut: Callable[[Tensor], object],
) -> None:
    """Anchors, positives and negatives of a triplet loss: a third has rows of both streams."""
    with pytest.warns(UserWarning, match=r"anchors.* = batchformer\.split"):
        cut(logits(12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut(split(logits(12)).plain)
        logits(12).chunk(3, 1)
        logits(16).chunk(3)  # no roles: eight samples have no thirds
        logits(18).split(4)  # parts of a batch that does not fit into memory


def test_stream_loss_needs_targets_that_say_how_many_samples_there_are() -> None:
    """Such as None for a triplet loss, which would then take both streams for one."""
    with pytest.raises(ValueError, match=r"targets have no rows .* = batchformer\.split"):
        stream_loss(lambda out, _: out.mean(), logits(8), None)
    one = logits(4).as_subclass(Tensor)
    assert torch.equal(stream_loss(lambda out, _: out.mean(), one, None), one.mean())


def cross_entropies(rows: object, targets: object) -> Tensor:
    """A loss taken row by row."""
    pairs = zip(rows, targets, strict=False)  # type: ignore[call-overload]
    return torch.stack([F.cross_entropy(row[None], y[None]) for row, y in pairs]).mean()


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: torch.cat((a, b)),
        lambda a, b: torch.vstack([a, b]),
        lambda a, b: torch.cat((a, b)).detach().softmax(1),
        lambda a, b: torch.hstack((a[:, 0], b[:, 0])),
        lambda a, b: torch.cat((torch.cat((a, b)), b)),
        lambda a, b: torch.cat((torch.cat((a, b)), torch.cat((b, b)))),
    ],
)
def test_outputs_of_several_calls_are_no_two_halves(join: Callable[..., Tensor]) -> None:
    """Doubled as halves, targets of the second call would meet mixed rows of the first."""
    joined = join(logits(8), logits(6))
    y = torch.zeros(len(joined) // 2, dtype=torch.long)
    with pytest.warns(
        UserWarning, match=r"match\(\): Several outputs were joined here.*torch\.cat"
    ):
        match({"logits": joined}, y)
    for use in (split, lambda out: stream_loss(F.cross_entropy, out, y)):
        with (
            warnings.catch_warnings(),
            pytest.raises(ValueError, match="Several outputs were joined"),
        ):
            warnings.simplefilter("ignore")
            use(joined)
    with pytest.raises(RuntimeError, match="Several outputs were joined"):
        _ = joined - y.view(-1, *[1] * (joined.ndim - 1))


@pytest.mark.parametrize(
    "use",
    [
        lambda a, b, y: match(torch.cat((a, b)), torch.cat((match(a, y), match(b, y)))),
        lambda a, b, y: match(torch.cat((a, b), dim=1), y),
        lambda a, b, y: match(torch.cat((a, torch.empty(0, 5))), y),
        lambda a, b, y: match(torch.cat((split(a).plain, split(b).plain)), torch.cat((y, y))),
        lambda a, b, y: split(torch.cat((a, b))[:8]),
        lambda a, b, y: torch.cat((a, b)).sum().backward(),
        lambda a, b, y: F.cross_entropy(torch.cat((a, b)), y.repeat(4)).backward(),
    ],
)
def test_outputs_that_are_joined_on_purpose_are_left_alone(use: Callable[..., object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(logits(), logits(), Y)


def test_a_list_of_outputs_is_not_taken_for_samples() -> None:
    """As of deep supervision: its halves would be whole outputs."""
    outputs = [logits(), logits()]
    with pytest.raises(ValueError, match="Pass a tuple of them"):
        split(outputs)
    assert [len(part) for part in split(tuple(outputs)).plain] == [4, 4]
    assert len(split(list(logits())).plain) == 4  # one entry for each row


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: cross_entropies(out, Y),
        lambda out: cross_entropies(out.log_softmax(1), Y),
        lambda out: sum(F.cross_entropy(row, y) for y, row in zip(Y, out, strict=False)),
        lambda out: sum(map(F.cross_entropy, out, Y)),
    ],
)
def test_a_loop_over_twice_the_rows_is_named_in_the_backward_pass(
    loss: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(RuntimeError, match=r"pairs 4 targets with 8 rows.\n.*match\(outputs"):
        loss(logits()).backward()


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: cross_entropies(out, match(out, Y)),
        lambda out: cross_entropies(split(out).plain, Y) + cross_entropies(split(out).mixed, Y),
        lambda out: sum(F.cross_entropy(row, y) for y, row in zip(match(out, Y), out, strict=True)),
        # Rows that are only looked at.
        lambda out: F.cross_entropy(out, match(out, Y)) + 0 * sum(itertools.islice(out, 4)).sum(),
        lambda out: F.cross_entropy(out, match(out, Y)) + len([*zip(out, Y, strict=False)]),
        lambda out: out[0].sum() + next(iter(out)).sum(),
        lambda out: torch.stack(list(out)[:4]).sum(),
    ],
)
def test_a_loop_that_takes_every_row_is_left_alone(loss: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(8, 5, requires_grad=True)
    (marked,) = torch.autograd.grad(loss(mark_two_streams(x * 2)), x)
    (plain,) = torch.autograd.grad(loss(x * 2), x)
    assert torch.equal(marked, plain)


def test_a_loop_over_one_sample_twice_is_left_alone() -> None:
    out, doubled = logits(2), Y[[0, 0]]
    cross_entropies(out, doubled).backward(retain_graph=True)
    sum(F.cross_entropy(row, y) for y, row in zip(doubled, out, strict=True)).backward()


@pytest.mark.skipif(not COMPILER_MARKS, reason="this compiler traces no subclass of ours")
def test_outputs_of_a_compiled_model_are_marked_too() -> None:
    torch.compiler.reset()
    model = attach(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5)), dropout=0.0, verbose=False)
    compiled, x = torch.compile(model, backend="aot_eager", fullgraph=True), torch.randn(4, 6)
    out = compiled(x)
    torch.testing.assert_close(out.detach(), model(x).detach())
    for criterion in (
        lambda: F.cross_entropy(compiled(x), Y),
        lambda: -F.log_softmax(compiled(x), 1)[torch.arange(4), Y].mean(),
        lambda: (compiled(x).argmax(1) == Y).float().mean(),
        lambda: F.poisson_nll_loss(compiled(x)[:, :1], Y),
        lambda: F.relu(1 - SIGN * compiled(x)[:, :1]).mean(),
        lambda: torch.where(SIGN > 0, compiled(x)[:, :1], 0.0).mean(),
        lambda: cross_entropies(compiled(x), Y).backward(),
    ):
        with pytest.raises((ValueError, RuntimeError), match="8 rows for 4 samples"):
            criterion()
    with pytest.raises(RuntimeError, match="rows i and 4"):
        compiled(x).view(4, -1)
    F.cross_entropy(out, match(out, Y)).backward()
    cross_entropies(compiled(x), match(out, Y)).backward()
    assert type(compiled.eval()(x)) is Tensor


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError) as caught:
        logits() @ torch.zeros(3, 3)
    assert "batchformer" not in str(caught.value)


def test_what_keeps_the_rows_keeps_the_memory() -> None:
    out = logits()
    assert type(out.flatten(1)) is TwoStreamTensor and type(out[:, :3]) is TwoStreamTensor
    assert type(out.detach()) is TwoStreamTensor and type(out.argmax(1)) is TwoStreamTensor
    assert type(torch.cat([out, out], 1)) is type(F.relu(input=out)) is TwoStreamTensor
    parts = (*out.split(2, 1), *out.chunk(2, 1), *out.unbind(1))
    assert {type(part) for part in parts} == {TwoStreamTensor}
    assert {type(part) for part in (*out.split(4), *out.chunk(2), *out, *out[:, :1].mT)} == {Tensor}
    assert type(torch.cat([out, torch.zeros(3, 5)])) is Tensor
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


def test_only_what_awaits_a_gradient_is_marked() -> None:
    assert type(mark_two_streams(torch.zeros(4, 2))) is Tensor
    assert type(mark_two_streams(torch.zeros((), requires_grad=True) * 1)) is Tensor
    assert mark_two_streams((1, 2)) == (1, 2)


class Own(Tensor):
    """A class of the user's."""


def test_a_tensor_of_another_class_keeps_it() -> None:
    out = (torch.randn(8, 5, requires_grad=True) * 1.0).as_subclass(Own)
    assert mark_two_streams(out) is out
    with FakeTensorMode():  # a pass without values, as those that estimate memory
        out = torch.randn(8, 5, requires_grad=True) * 1.0
        assert mark_two_streams(out) is out


def test_outputs_of_several_layers_are_stacked_and_taken_apart() -> None:
    """As detectors do with those of their decoder's layers."""
    stacked = torch.stack([logits(), logits(), logits()])
    for outputs in (stacked[-1], stacked.mean(0)):
        with pytest.raises(ValueError, match="8 rows for 4 samples"):
            F.cross_entropy(outputs, Y)
    assert type(stacked * torch.ones(5)) is type(stacked.flatten()) is Tensor
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        stacked + torch.ones(2)  # another mistake
    assert "two streams" not in str(caught.value)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="this compiler breaks the graph at a loop over our rows",
)
def test_a_compiled_step_of_loops_and_reshapes_stays_whole() -> None:
    torch.compiler.reset()

    def step(out: Tensor, y: Tensor) -> Tensor:
        two = out.view(2, 4, 5).mean(0).sum() + F.relu(1 - y * out[:, 0]).mean()
        return two + cross_entropies(out, y)

    out, y = logits(), match(logits(), Y)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(out, y), step(out, y))


def test_pairs_of_a_matcher_are_judged_by_the_rows_they_name() -> None:
    boxes = mark_two_streams(torch.randn(8, 3, 4, requires_grad=True) * 1.0)
    queries = torch.tensor([2, 0, 2, 0])
    assert boxes[torch.tensor([0, 2, 4, 6]), queries].shape == (4, 4)  # two boxes in four images
    with pytest.raises(RuntimeError, match="__getitem__ pairs 4 targets with 8 rows"):
        boxes[torch.tensor([0, 1, 2, 3]), queries]


def test_deep_inside_only_the_outputs_are_marked() -> None:
    """Each operation on a marked tensor takes longer, and a network may have hundreds."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))
    attach(model, at="1", verbose=False)
    seen: list[Tensor] = []
    model[2].register_forward_hook(lambda module, args, out: seen.append(out))
    assert type(model(torch.randn(4, 6))) is TwoStreamTensor
    assert type(seen[0]) is Tensor and len(seen[0]) == 8


@pytest.mark.parametrize("at", ["1", "3"])
def test_mixed_rows_alone_are_no_two_streams(at: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))
    attach(model, at=at, streams="mixed_only", verbose=False)
    out = model(torch.randn(6, 6))
    assert type(out) is Tensor and out.view(3, 2, 5).mean(1).shape == (3, 5)


class Block(nn.Module):
    """A head that is no layer: a norm and a linear layer, as in LeViT and RepViT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))  # type: ignore[no-any-return]


class WithBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(6, 8), nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.body(x)
        return tuple(head(x) for head in self.heads)


class Declaring(WithBlocks):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.heads[0](self.body(x))  # type: ignore[no-any-return]

    def get_classifier(self) -> nn.Module:
        return self.heads[0]


@pytest.mark.parametrize("build", [WithBlocks, Declaring])
def test_the_outputs_of_a_head_that_is_a_block_are_marked(build: type[nn.Module]) -> None:
    out = attach(build(), verbose=False)(torch.randn(4, 6))
    for part in out if isinstance(out, tuple) else [out]:
        with pytest.raises(ValueError, match="8 rows for 4 samples"):
            F.cross_entropy(part, Y)
