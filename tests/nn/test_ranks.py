"""Ranks, collectives and what ranks agree on, in one process that plays a rank.

Real process groups are in test_exchange.py and test_attention_across.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

import batchformer
from batchformer.nn import exchange
from batchformer.nn.exchange import (
    AllRows,
    agree_on_rows,
    as_single_rank,
    is_rank_zero,
    rank,
    world_size,
)
from batchformer.torch_private import uncompiled

CPU = torch.device("cpu")


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent, so a rank can be played."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 3)
    monkeypatch.setattr(dist, "get_rank", lambda group: 1)


@pytest.mark.usefixtures("second_of_three")
def test_a_single_rank_until_the_last_block_is_left() -> None:
    assert (rank(), world_size()) == (1, 3) and not is_rank_zero()
    with pytest.raises(KeyError), as_single_rank():
        with as_single_rank():
            assert (rank(), world_size()) == (0, 1) and is_rank_zero()
        assert (rank(), world_size()) == (0, 1)
        raise KeyError
    assert (rank(), world_size()) == (1, 3)


def test_a_torch_without_collectives_has_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert (rank(), world_size()) == (0, 1)


CALLED = re.compile(r"dist\.(all_\w+|broadcast\w*|reduce\w*|scatter\w*|gather\w*)\(")


def test_collectives_are_called_in_one_file() -> None:
    root = Path(batchformer.__file__).parent
    # A benchmark synchronises ranks by its own collectives, outside of what it times.
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "bench" not in path.parts and CALLED.search(path.read_text())
    ]
    assert found == ["nn/exchange.py"]


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_collectives_of_one_rank_change_nothing() -> None:
    x = torch.arange(6.0).view(3, 2)
    before = x.clone()
    (found,) = exchange.all_gather(x, 1)
    assert torch.equal(found, before) and found.data_ptr() != x.data_ptr()
    for change in (exchange.all_reduce_, exchange.all_reduce_max_, exchange.broadcast_):
        change(x)
        assert torch.equal(x, before)


#: Rows, positions and seed of ranks 0 and 2.
FIRST, LAST = torch.tensor([4, 3, 77]), torch.tensor([0, 3, 99])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What this rank, the second of three, sends to the others, which are played."""
    sent: list[Tensor] = []

    def all_gather(own: Tensor, ranks: int, group: object) -> list[Tensor]:
        sent.append(own)
        return [FIRST, own, LAST]

    monkeypatch.setattr(exchange, "world_size", lambda group=None: 3)
    monkeypatch.setattr(exchange, "rank", lambda group=None: 1)
    monkeypatch.setattr(exchange, "all_gather", all_gather)
    return sent


def test_one_rank_has_its_own_rows() -> None:
    assert (rank(), world_size()) == (0, 1) and is_rank_zero()
    rows = agree_on_rows(5, 1, CPU, draw=False)
    assert rows == AllRows([5], slice(0, 5), torch.tensor(0)) and rows.total == 5


def test_the_seed_comes_from_torchs_generator_which_does_not_advance_without_need() -> None:
    torch.manual_seed(1)
    expected = torch.randint(2**62, (1,))
    torch.manual_seed(1)
    agree_on_rows(5, 1, CPU, draw=False)
    rows = agree_on_rows(5, 1, CPU, draw=True)
    assert torch.equal(rows.seed, expected[0]) and rows.seed.dtype == torch.int64


def test_every_rank_knows_all_rows_and_takes_the_seed_of_rank_zero(sent: list[Tensor]) -> None:
    torch.manual_seed(1)
    rows = agree_on_rows(2, 3, CPU, draw=True)
    assert rows.counts == [4, 2, 0] and rows.own == slice(4, 6) and rows.total == 6
    assert int(rows.seed) == 77 and rows.seed.ndim == 0
    (own,) = sent
    torch.manual_seed(1)
    assert own.tolist() == [2, 3, int(torch.randint(2**62, (1,)))]


@uncompiled
def read_back(x: Tensor, factor: float = 2.0) -> float:
    """What a graph cannot contain."""
    assert not torch.compiler.is_compiling()
    return factor * float(x.sum())


def scaled(x: Tensor) -> Tensor:
    return (x + 1) * read_back(x, factor=3.0)


def test_an_uncompiled_function_breaks_the_graph_and_gives_the_same() -> None:
    x = torch.arange(3.0)
    expected = torch.tensor([9.0, 18.0, 27.0])
    assert torch.equal(scaled(x), expected)
    assert torch.equal(torch.compile(scaled, backend="eager")(x), expected)
    torch.compiler.reset()  # else the code that was compiled with a break would be used
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(scaled, backend="eager", fullgraph=True)(x)
