"""The graph of pairs against a dense one made by a loop; its network against dense products."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.models.pair_graph import GraphNetwork, node_features, pair_graph

FEW = Compositions.of(
    train=[("old", "cat"), ("wet", "dog"), ("new", "dog")], val=[], test=[("wet", "cat")]
)


def dense_graph(pairs: Compositions) -> Tensor:
    """Ones by name, transposed, each row divided by its sum; float64."""
    nodes = [*pairs.attributes, *pairs.objects, *pairs.names]
    graph = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
    for i, j in itertools.product(range(len(nodes)), repeat=2):
        one, other = nodes[i], nodes[j]
        joined = one == other or (one, other) in pairs.names or (other, one) in pairs.names
        if isinstance(one, tuple) and isinstance(other, str):
            joined = other in one
        if isinstance(other, tuple) and isinstance(one, str):
            joined = one in other
        graph[i, j] = float(joined)
    graph = graph.T
    return graph / graph.sum(1, keepdim=True)


@settings(max_examples=25)
@given(
    chosen=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=20),
    opened=st.booleans(),
)
def test_equals_the_dense_graph(chosen: set[tuple[int, int]], opened: bool) -> None:
    named = [(f"a{i}", f"o{j}") for i, j in sorted(chosen)]
    pairs = Compositions.of(named[: len(named) // 2 + 1], [], named)
    pairs = pairs.opened() if opened else pairs
    graph = pair_graph(pairs)
    torch.testing.assert_close(graph.to_dense().double(), dense_graph(pairs))
    assert graph.is_sparse and (graph.to_dense() > 0).equal(graph.to_dense().T > 0)
    size = len(pairs.attributes) + len(pairs.objects) + len(pairs)
    assert graph._nnz() == size + 6 * len(pairs)


def test_a_pair_begins_between_its_words() -> None:
    vectors = torch.arange(10.0).view(5, 2) ** 2
    nodes = node_features(FEW, vectors)
    assert nodes[:5].equal(vectors)
    words = dict(zip((*FEW.attributes, *FEW.objects), vectors, strict=True))
    for row, (attribute, thing) in zip(nodes[5:], FEW.names, strict=True):
        assert row.equal((words[attribute] + words[thing]) / 2)


@pytest.mark.parametrize("sizes", [(3, 16, 4), (16, 8, 12)], ids=str)
def test_forward_and_gradients_are_those_of_dense_products(sizes: tuple[int, int, int]) -> None:
    """Dropout aside: linear, propagate, ReLU, linear, propagate, and length one."""
    inside, hidden, out = sizes
    network = GraphNetwork(pair_graph(FEW), inside, hidden, out).double().eval()
    # The module's weights were made in float32; a short row would enlarge their rounding.
    network.weights.copy_(1 / dense_graph(FEW).gt(0).sum(1).double()[network.rows][:, None])
    graph = dense_graph(FEW)
    x = torch.randn(len(graph), inside, dtype=torch.float64, requires_grad=True)
    got = network(x)
    first, second = network.first, network.second
    y = (graph @ (x @ first.weight.T + first.bias)).clamp_min(0)
    y = graph @ (y @ second.weight.T + second.bias)
    expected = y / y.norm(dim=1, keepdim=True)
    torch.testing.assert_close(got, expected)
    towards = torch.randn_like(got)
    sources = [x, *network.parameters()]
    for a, b in zip(
        torch.autograd.grad((got * towards).sum(), sources),
        torch.autograd.grad((expected * towards).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_dropout_before_each_layer_in_training_alone() -> None:
    torch.manual_seed(0)
    network = GraphNetwork(pair_graph(FEW), 4, 8, 4, dropout=0.5)
    seen: list[Tensor] = []
    network.dropout.register_forward_hook(lambda module, args, out: seen.append(out))
    x = torch.rand(9, 4) + 1
    network.train()(x)
    assert [s.shape for s in seen] == [(9, 4), (9, 8)] and (seen[0] == 0).any()
    assert network.eval()(x).equal(network(x))


@pytest.mark.parametrize("sizes", [(3, 16, 4), (16, 8, 12)], ids=str)
def test_half_precision_propagates_in_float32(sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network, x = GraphNetwork(pair_graph(FEW), *sizes, dropout=0.0), torch.randn(9, sizes[0])
    exact = network(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(x)
        assert network.propagate(x.bfloat16()).dtype == torch.float32
    rough.sum().backward()
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, atol=0.03, rtol=0)
    torch.testing.assert_close(rough.norm(dim=1), torch.ones(9))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_the_graph_is_no_part_of_the_state_and_moves_with_the_network() -> None:
    network = GraphNetwork(pair_graph(FEW), 4, 8, 4)
    assert {key.split(".")[0] for key in network.state_dict()} == {"first", "second"}
    moved = copy.deepcopy(network).to("meta")
    assert {b.device.type for b in moved.buffers()} == {"meta"}
    assert copy.deepcopy(network).double()(torch.randn(9, 4).double()).dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("half", [False, True])
def test_forward_and_backward_can_be_captured(half: bool) -> None:
    torch.manual_seed(0)
    network, x = GraphNetwork(pair_graph(FEW), 4, 16, 8, dropout=0.0).cuda(), torch.randn(9, 4)
    x = x.cuda()

    def work() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            out = network(x)
        return [out, *torch.autograd.grad(out.square().sum(0).cos().sum(), [*network.parameters()])]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        expected = [value.clone() for value in work()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            got = work()
        graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
