"""The fused layer for few channels against float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
#: Relative error (norm of the difference over the norm) that a type may have.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


class Case(NamedTuple):
    length: int
    n: int
    channels: int
    heads: int
    dropout: float
    attend_self: bool = False
    dtype: torch.dtype = torch.float32
    operands: torch.dtype | None = None
    parameters: torch.dtype | None = None


#: Samples that fill no tile, one sample, several positions, all numbers of channels.
CASES = [
    Case(1, 1, 32, 2, 0.3),
    Case(2, 7, 32, 2, 0.5),
    Case(1, 33, 64, 1, 0.0),
    Case(1, 17, 64, 4, 0.5, attend_self=True),
    Case(3, 9, 16, 1, 0.0, attend_self=True),
    Case(1, 7, 64, 4, 0.5, dtype=torch.float16),
    Case(1, 7, 32, 1, 0.5, operands=torch.float16),
    Case(2, 7, 16, 1, 0.3, dtype=torch.float16, parameters=torch.float32),
]
if ON_GPU:
    TYPES = (torch.float32, torch.float16, torch.bfloat16)
    CASES += [Case(1, n, 64, 4, 0.5, dtype=t) for n in (128, 512, 1000) for t in TYPES]
    CASES += [Case(3, 300, 64, 1, 0.3, operands=t) for t in TYPES]
    CASES += [Case(1, 1000, 32, 2, 0.5, attend_self=True, dtype=t) for t in TYPES]
    CASES += [Case(400, 70, 16, 1, 0.5, dtype=t) for t in TYPES]


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm()) if b.any() else float(a.norm())


def away_from_zero(channels: int, by: float) -> Tensor:
    """A bias that leaves no ReLU near its threshold, for half precision.

    Where rounding moves an input across it, the error is that of one sample's whole gradient, and
    says nothing of how precise the arithmetic is.
    """
    return by * (-1.0) ** torch.arange(channels)


def given(case: Case) -> list[Tensor]:
    """The input and the twelve parameters, none of them special."""
    torch.manual_seed(0)
    c = case.channels
    square = [(3 * c, c), (3 * c,)] + [(c, c), (c,)] * 3
    scales = [c**-0.5, 0.3] * 4
    tensors = [torch.randn(s) * f for s, f in zip(square, scales, strict=True)]
    tensors += [shift + 0.3 * torch.randn(c) for shift in (1, 0, 1, 0)]
    if (case.operands or case.dtype) != torch.float32:
        tensors[5] += away_from_zero(c, 8.0)
    kind = case.parameters or case.dtype
    x = torch.randn(case.length, case.n, c).to(DEVICE, case.dtype)
    return [t.requires_grad_() for t in (x, *(t.to(DEVICE, kind) for t in tensors))]


def seeds(first: int = 100) -> Tensor:
    return torch.arange(first, first + 4, device=DEVICE)


def masks(case: Case, place: int, seed: Tensor | None = None) -> Tensor:
    """The mask of a place: ``(L, heads, N, N)`` of the attention, ``(L, N, C)`` of the others."""
    from batchformer.kernels.small_dropout import keep_masks

    at = (seeds() if seed is None else seed)[place : place + 1]
    length, n, channels, heads, dropout, *_ = case
    if place:
        return keep_masks(at, 1, length * n, channels, dropout).view(length, n, channels)
    return keep_masks(at, length * heads, n, n, dropout).view(length, heads, n, n)


def reference(case: Case, tensors: list[Tensor], seed: Tensor | None = None) -> Tensor:
    """The layer with the same masks, each step by torch."""
    from batchformer.kernels.dropout import threshold_and_scale

    length, n, channels, heads, dropout, attend_self, *_ = case
    scale = threshold_and_scale(dropout)[1]
    kept = [masks(case, place, seed) * scale for place in range(4)]
    x, wi, bi, wo, bo, w1, b1, w2, b2, g1, s1, g2, s2 = tensors
    q, k, v = F.linear(x, wi, bi).view(length, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if attend_self:
        others = ~torch.eye(n, dtype=torch.bool, device=x.device)
        scores = scores.masked_fill(others, -torch.inf)
    mixed = (torch.softmax(scores, -1) * kept[0]) @ v
    mixed = mixed.transpose(1, 2).reshape(x.shape)
    x = F.layer_norm(x + F.linear(mixed, wo, bo) * kept[1], (channels,), g1, s1)
    hidden = F.relu(F.linear(x, w1, b1)) * kept[2]
    return F.layer_norm(x + F.linear(hidden, w2, b2) * kept[3], (channels,), g2, s2)


def apply(case: Case, tensors: list[Tensor], seed: Tensor | None = None) -> Tensor:
    from batchformer.kernels.small_layer import SmallLayer

    seed = seeds() if seed is None else seed
    options = (case.heads, case.dropout, case.attend_self, seed, case.operands)
    out: Tensor = SmallLayer.apply(*tensors, *options)
    return out


def check_against_float64(case: Case) -> None:
    tensors = given(case)
    out = apply(case, tensors)
    assert out.dtype == case.dtype and out.shape == tensors[0].shape
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, tensors, gradient)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    expected = reference(case, exact)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    tolerance = TOLERANCE[case.operands or case.dtype]
    assert relative(out, expected) < tolerance
    for ours, theirs, tensor in zip(got, wanted, tensors, strict=True):
        assert ours.dtype == tensor.dtype and ours.shape == tensor.shape
        assert relative(ours, theirs) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_values_and_gradients_with_the_same_masks(case: Case) -> None:
    check_against_float64(case)


@pytest.mark.gpu
@pytest.mark.parametrize(("own", "stream", "rows", "attend_self"), [
    (32, 64, 32, False), (64, 32, 64, True),
])  # fmt: skip
def test_any_tile_gives_the_same(
    own: int, stream: int, rows: int, attend_self: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them masks: no tile may change which elements are dropped."""
    from batchformer.kernels import small_attention, small_gradients, small_projection, small_rows

    tile = small_attention.Tile(own, stream, 8, 1)
    block = small_projection.Block(rows, 8, rows)
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setitem(getattr(small_attention, name), 4, tile)
        monkeypatch.setitem(getattr(small_rows, name), 4, block)
    monkeypatch.setitem(small_projection.PROJECT, 4, block)
    monkeypatch.setitem(small_gradients.INPUT, 4, block)
    monkeypatch.setitem(small_gradients.WEIGHTS, 4, small_gradients.Share(16, 32))
    check_against_float64(Case(1, 70, 16, 1, 0.5, attend_self))


@pytest.mark.gpu
def test_parts_that_need_no_gradient() -> None:
    """A frozen layer passes the same gradient on; a frozen input changes no parameter's."""
    case = Case(1, 7, 16, 1, 0.5)
    tensors = given(case)
    gradient = torch.randn(1, 7, 16, device=DEVICE)
    every = torch.autograd.grad(apply(case, tensors), tensors, gradient)

    x = tensors[0]
    frozen = [x, *(t.detach() for t in tensors[1:])]
    (dx,) = torch.autograd.grad(apply(case, frozen), x, gradient)
    assert torch.equal(dx, every[0])
    alone = torch.autograd.grad(apply(case, [x.detach(), *tensors[1:]]), tensors[1:], gradient)
    assert all(torch.equal(a, b) for a, b in zip(alone, every[1:], strict=True))
    biases = [t if t.dim() == 1 else t.detach() for t in tensors]
    some = [t for t in biases if t.requires_grad]
    found = torch.autograd.grad(apply(case, biases), some, gradient)
    assert len(found) == 8
    wanted = [g for g, t in zip(every, tensors, strict=True) if t.dim() == 1]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.gpu
def test_the_same_seeds_give_the_same_bits_and_others_do_not() -> None:
    case = Case(1, 9, 16, 1, 0.5)
    tensors = given(case)
    gradient = torch.randn_like(tensors[0])

    def run() -> list[Tensor]:
        out = apply(case, tensors)
        return [out, *torch.autograd.grad(out, tensors, gradient)]

    first = run()
    assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))
    for place in range(4):
        other = seeds()
        other[place] += 1000
        assert not torch.equal(apply(case, tensors, other), first[0])


@pytest.mark.gpu
def test_without_dropout_it_is_torchs_layer() -> None:
    channels, heads = 64, 2
    torch.manual_seed(0)
    stock = nn.TransformerEncoderLayer(channels, heads, channels, dropout=0.0, device=DEVICE)
    tensors = [p for _, p in stock.named_parameters()]
    x = torch.randn(2, 11, channels, device=DEVICE, requires_grad=True)
    out = apply(Case(2, 11, channels, heads, 0.0), [x, *tensors])
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, [x, *tensors], gradient)
    expected = stock(x.transpose(0, 1)).transpose(0, 1)
    wanted = torch.autograd.grad(expected, [x, *tensors], gradient)
    assert relative(out, expected) < 1e-5
    assert all(relative(a, b) < 1e-5 for a, b in zip(got, wanted, strict=True))


@pytest.mark.gpu
def test_a_sample_that_is_not_a_number_is_not_hidden() -> None:
    case = Case(1, 5, 16, 1, 0.0)
    tensors = [t.detach() for t in given(case)]
    tensors[0][0, 2] = torch.nan
    assert apply(case, tensors).isnan().all()
    assert apply(case._replace(attend_self=True), tensors).isnan().any(-1).tolist() == [
        [False, False, True, False, False]
    ]


@pytest.mark.parametrize("seeds", [torch.arange(3), torch.zeros(4), torch.arange(8).view(2, 4)])
def test_seeds_that_are_none_are_refused(seeds: Tensor) -> None:
    case = Case(1, 5, 16, 1, 0.0)
    tensors = [t.detach().cpu() for t in given(case)]
    with pytest.raises(ValueError, match=r"seeds must be \(4,\) torch.int64 on cpu.*draw_seeds"):
        apply(case, tensors, seeds)


@pytest.mark.parametrize(
    ("shape", "heads", "dtype", "words"),
    [
        ((1, 128, 64), 4, torch.float32, None),
        ((1, 4096, 16), 1, torch.bfloat16, None),
        ((49, 1, 32), 2, torch.float16, None),
        ((1, 128, 48), 1, torch.float32, "48 channels"),
        ((1, 128, 128), 4, torch.float32, "128 channels"),
        ((1, 128, 64), 3, torch.float32, "3 heads do not divide 64"),
        ((1, 128, 64), 8, torch.float32, "heads of 8 channels"),
        ((1, 4097, 64), 4, torch.float32, "4097 samples are more than 4096"),
        ((1, 128, 64), 4, torch.float64, "torch.float64 is not"),
        ((128, 64), 4, torch.float32, "(128, 64) is not (L, N, C)"),
        ((1, 0, 64), 4, torch.float32, "at least one sample"),
    ],
)
def test_reasons_in_words(
    shape: tuple[int, ...],
    heads: int,
    dtype: torch.dtype,
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from batchformer.kernels import small_layer

    x = torch.zeros(shape, dtype=dtype)
    found = small_layer.small_layer_unsupported_reason(x, heads)
    assert found == "the tensor is not on a CUDA device"
    monkeypatch.setattr(small_layer, "unsupported_reason", lambda x: None)
    found = small_layer.small_layer_unsupported_reason(x, heads)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [128, 512, 1000])
def test_compiled_as_precise_as_torchs_layer(n: int, dtype: torch.dtype) -> None:
    """Without dropout: within 1.5 times the error of torch's own layer under autocast."""
    torch.manual_seed(0)
    stock = nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0, device=DEVICE)
    with torch.no_grad():
        stock.linear1.bias.copy_(away_from_zero(64, 4.0))
    x = torch.randn(1, n, 64, device=DEVICE)
    gradient = torch.randn_like(x)
    half = dtype != torch.float32

    def run(layer: nn.TransformerEncoderLayer, ours: bool, kind: torch.dtype) -> list[Tensor]:
        start = x.detach().to(kind).requires_grad_()
        wanted = [start, *layer.parameters()]
        if ours:
            out = apply(Case(1, n, 64, 4, 0.0, operands=dtype), wanted)
        else:
            autocast = half and kind == torch.float32
            with torch.autocast("cuda", dtype if half else torch.bfloat16, enabled=autocast):
                out = layer(start.transpose(0, 1)).transpose(0, 1)
        found = torch.autograd.grad(out, wanted, gradient.to(out.dtype))
        return [out.detach(), *found]

    mine = run(stock, ours=True, kind=torch.float32)
    theirs = run(stock, ours=False, kind=torch.float32)
    exact = run(stock.double(), ours=False, kind=torch.float64)
    for ours, stocks, truth in zip(mine, theirs, exact, strict=True):
        assert relative(ours, truth) < max(1.5 * relative(stocks, truth), 1e-6)


@pytest.mark.gpu
def test_compiled_into_a_graph_each_replay_draws_new_masks() -> None:
    from batchformer.kernels.dropout import draw_seeds

    case = Case(1, 128, 64, 4, 0.5, operands=torch.bfloat16)
    tensors = given(case)
    gradient = torch.randn(1, 128, 64, device=DEVICE)

    def step() -> list[Any]:
        seed = draw_seeds(4, DEVICE)
        out = apply(case, tensors, seed)
        return [seed, out, *torch.autograd.grad(out, tensors, gradient)]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = step()
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append([t.detach().clone() for t in static])
    for seed, out, *found in seen:
        again = apply(case, tensors, seed)
        assert torch.equal(again, out)
        expected = torch.autograd.grad(again, tensors, gradient)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(seen[0][1], seen[1][1]) and not torch.equal(seen[1][1], seen[2][1])
