"""Attention by kernels, and its softmax with dropout in blocks, against float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
#: Samples that make several blocks of rows and of columns.
LARGE = 300 if ON_GPU else 21


@pytest.fixture(autouse=True)
def _several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples, but several tiles of columns, where the interpreter runs."""
    if not ON_GPU and find_spec("triton"):
        for name in ("FORWARD", "BACKWARD_KEPT", "BACKWARD"):
            monkeypatch.setattr(f"batchformer.kernels.attention.{name}", (16, 4))


def kept_weights(qkv: Tensor, heads: int, dropout: float, seed: Tensor) -> Tensor:
    """Which weights (heads, N, N) survive: seen by letting the values be unit vectors."""
    from batchformer.kernels.attention import SampleAttention

    n, width = len(qkv), qkv.shape[1] // 3 // heads
    kept = torch.zeros(heads, n, n, dtype=torch.bool, device=qkv.device)
    for start in range(0, n, width):
        stop = min(start + width, n)
        probe = qkv.detach().clone().view(n, 3, heads, width)
        probe[:, 2] = 0
        unit = torch.eye(stop - start, device=qkv.device, dtype=qkv.dtype)
        probe[start:stop, 2, :, : stop - start] = unit[:, None]
        seen = SampleAttention.apply(probe.view(n, -1), heads, dropout, seed)
        kept[..., start:stop] = seen.view(n, heads, width).transpose(0, 1)[..., : stop - start] > 0
    return kept


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "case",
    [(13, 2, 8, 0.0), (LARGE, 1, 16, 0.5), (27 if ON_GPU else 11, 3, 5, 0.3), (8, 1, 4, 0.25)],
)
def test_attention(
    case: tuple[int, int, int, float],
    keep: bool,
    dtype: torch.dtype,
    device: torch.device,
    seed: Tensor,
    assert_near: Callable[[Tensor, Tensor], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and gradients, with weights kept for the backward pass and without."""
    from batchformer.kernels import attention
    from batchformer.kernels.dropout import threshold_and_scale

    n, heads, width, dropout = case
    monkeypatch.setattr(attention, "KEPT_BUDGET", 2**40 if keep else 0)
    monkeypatch.setattr(attention, "BLOCK_BUDGET", heads * n * dtype.itemsize * 8 * 2)
    torch.manual_seed(0)
    qkv = torch.randn(n, 3 * heads * width, device=device, dtype=dtype, requires_grad=True)
    kept = kept_weights(qkv, heads, dropout, seed)
    out = attention.SampleAttention.apply(qkv, heads, dropout, seed)
    gradient = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, qkv, gradient)

    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.view(n, 3, heads, width).permute(1, 2, 0, 3)
    weights = torch.softmax(q @ k.transpose(1, 2) / width**0.5, -1)
    mixed = (weights * kept * threshold_and_scale(dropout)[1]) @ v
    expected = mixed.transpose(0, 1).reshape(n, -1)
    (reference,) = torch.autograd.grad(expected, exact, gradient.double())
    assert_near(out, expected)
    assert_near(got, reference)
    rate = float(kept.double().mean())
    assert rate == pytest.approx(
        1 - dropout, abs=5 * (dropout * (1 - dropout) / kept.numel()) ** 0.5
    )


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("channels", [512, 2048])
def test_the_whole_layer_compiled_is_torchs(
    channels: int, autocast: bool, device: torch.device, relative: Callable[[Tensor, Tensor], float]
) -> None:
    """Without dropout: within 1.5 times the error that torch's own layer has in bf16."""
    from batchformer.nn.encoder import EncoderWeights, batch_former

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(channels, 4, channels, dropout=0.0, device=device)
    x = torch.randn(2048, channels, device=device)
    gradient = torch.randn_like(x)

    def run(ours: bool, dtype: torch.dtype) -> list[Tensor]:
        layer.to(torch.float32 if autocast and dtype == torch.bfloat16 else dtype)
        kind = torch.float32 if autocast and dtype == torch.bfloat16 else dtype
        given = x.detach().to(kind).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast and dtype == torch.bfloat16):
            weights = [EncoderWeights.of(layer)]
            out = batch_former(given, weights) if ours else layer(given[:, None])[:, 0]
        wanted = [given, *layer.parameters()]
        found = torch.autograd.grad(out, wanted, gradient.to(out.dtype))
        return [out.detach(), *found]

    exact = run(ours=False, dtype=torch.float64)
    theirs = run(ours=False, dtype=torch.bfloat16)
    mine = run(ours=True, dtype=torch.bfloat16)
    for ours, stock, reference in zip(mine, theirs, exact, strict=True):
        assert relative(ours, reference) < max(1.5 * relative(stock, reference), 1e-3)


@pytest.mark.gpu
def test_masks_are_independent_of_the_block_and_differ_by_head_row_and_seed(
    device: torch.device,
) -> None:
    from batchformer.kernels.attention import softmax_dropout_

    def mask(seed: int, rows: slice, n: int = 40) -> Tensor:
        part = torch.zeros(2, 40, n, device=device)[:, rows].contiguous()
        sums = torch.empty(2, 40, device=device)
        drawn_by = torch.tensor([seed], device=device)
        return softmax_dropout_(part, sums, drawn_by, 0.5, rows.start) > 0

    whole = mask(1, slice(0, 40))
    assert torch.equal(mask(1, slice(8, 24)), whole[:, 8:24])
    assert not torch.equal(mask(2, slice(0, 40)), whole)
    flat = whole.flatten(0, 1).double() - 0.5
    correlation = (flat @ flat.T / 10).fill_diagonal_(0)  # 1 for equal rows
    assert float(correlation.abs().max()) < 0.9


@pytest.mark.gpu
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("first_row", [0, 8])
def test_weights_and_sums_of_a_block_of_rows(
    dropped: bool,
    first_row: int,
    device: torch.device,
    seed: Tensor,
    relative: Callable[[Tensor, Tensor], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from batchformer.kernels import attention
    from batchformer.kernels.dropout import threshold_and_scale

    monkeypatch.setattr(attention, "FORWARD", (16, 4))
    torch.manual_seed(0)
    scores = 3 * torch.randn(2, 11, 37, device=device)
    exact = scores.double()
    sums = torch.full((2, 30), torch.nan, device=device)
    apart = torch.empty_like(scores) if dropped else None
    out = attention.softmax_dropout_(scores, sums, seed, 0.3, first_row, apart)
    kept = (out != 0) * threshold_and_scale(0.3)[1]
    assert relative(out, torch.softmax(exact, -1) * kept) < 1e-6
    assert float((out != 0).double().mean()) == pytest.approx(0.7, abs=0.1)
    here = slice(first_row, first_row + 11)
    assert relative(sums[:, here], torch.logsumexp(exact, -1) / torch.tensor(2.0).log()) < 1e-6
    assert sums.isnan().sum() == 2 * (30 - 11), "other rows are left alone"
    if dropped:
        assert out is apart and relative(scores, torch.softmax(exact, -1)) < 1e-6


@pytest.mark.gpu
def test_products_are_summed_within_heads(
    device: torch.device, relative: Callable[[Tensor, Tensor], float]
) -> None:
    from batchformer.kernels.attention import output_times_gradient

    torch.manual_seed(0)
    a, b = torch.randn(5, 15, device=device), torch.randn(5, 15, device=device)
    expected = (a.double() * b.double()).view(5, 3, 5).sum(-1).T
    assert relative(output_times_gradient(a, b, 3), expected) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize(("keep", "dropout"), [(True, 0.5), (True, 0.0), (False, 0.5)])
def test_the_operator_tells_the_compiler_the_truth(
    keep: bool, dropout: float, device: torch.device, seed: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shapes, strides and gradients, with an N that is no multiple of the alignment."""
    from batchformer.kernels import attention
    from batchformer.kernels.operator import sample_attention

    monkeypatch.setattr(attention, "KEPT_BUDGET", 2**40 if keep else 0)
    monkeypatch.setattr(attention, "BLOCK_BUDGET", 9 * 4 * 8)
    qkv = torch.randn(9, 3 * 8, device=device, requires_grad=True)
    given = (qkv, seed, 1, dropout)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(sample_attention, given, test_utils=tests)
    plain = attention.SampleAttention.apply(qkv, 1, dropout, seed)
    found = sample_attention(*given)[0]
    gradient = torch.randn_like(plain)
    both = [torch.autograd.grad(out, qkv, gradient)[0] for out in (plain, found)]
    assert torch.equal(found, plain) and torch.equal(*both)


@pytest.mark.gpu
def test_a_graph_keeps_the_operator_for_every_size(device: torch.device) -> None:
    from torch._dynamo.testing import AotEagerAndRecordGraphs

    from batchformer.nn.attention import attention

    recorded = AotEagerAndRecordGraphs()
    options = {"heads": 2, "dropout": 0.5, "path": "triton"}
    graph = torch.compile(attention, backend=recorded, fullgraph=True)
    for n in (9, 7, 5):
        qkv = torch.randn(n, 3 * 4, device=device, requires_grad=True)
        found = []
        for function in (attention, graph):
            torch.manual_seed(3)
            out = function(qkv, **options)
            found.append((out, *torch.autograd.grad(out.square().sum(), qkv)))
        assert all(map(torch.equal, *found))
    assert len(recorded.graphs) == 2, "one for the first size, one for all others"
    for part, name in (("fw", "sample_attention"), ("bw", "sample_attention_backward")):
        for graph in getattr(recorded, f"{part}_graphs"):
            targets = [str(node.target) for node in graph.graph.nodes]
            assert targets.count(f"batchformer.{name}.default") == 1
