"""What ranks agree on before they attend; real groups do it in test_attention_across.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from batchformer.nn.exchange import AllRows, agree_on_rows

CPU = torch.device("cpu")
#: Rows, positions and seed, as ranks 0 and 2 tell them.
FIRST, LAST = torch.tensor([4, 3, 77]), torch.tensor([0, 3, 99])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What this rank, the second of three, tells the others: they are played."""
    said: list[Tensor] = []

    def from_all(own: Tensor, ranks: int, group: object) -> list[Tensor]:
        said.append(own)
        return [FIRST, own, LAST]

    monkeypatch.setattr("batchformer.nn.exchange.world_size", lambda group=None: 3)
    monkeypatch.setattr("batchformer.nn.exchange.world_size", lambda group=None: 3)
    monkeypatch.setattr("batchformer.nn.exchange.rank", lambda group=None: 1)
    monkeypatch.setattr("batchformer.nn.exchange.all_gather", from_all)
    return said


def test_one_rank_has_its_own_rows() -> None:
    met = agree_on_rows(5, 1, CPU, draw=False)
    assert met == AllRows([5], slice(0, 5), torch.tensor(0)) and met.total == 5


def test_the_seed_is_of_torchs_generator_which_is_else_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.randint(2**62, (1,))
    torch.manual_seed(1)
    agree_on_rows(5, 1, CPU, draw=False)
    met = agree_on_rows(5, 1, CPU, draw=True)
    assert torch.equal(met.seed, expected[0]) and met.seed.dtype == torch.int64


def test_every_rank_knows_all_rows_and_takes_the_first_ones_seed(told: list[Tensor]) -> None:
    torch.manual_seed(1)
    met = agree_on_rows(2, 3, CPU, draw=True)
    assert met.counts == [4, 2, 0] and met.own == slice(4, 6) and met.total == 6
    assert int(met.seed) == 77 and met.seed.ndim == 0
    (own,) = told
    torch.manual_seed(1)
    assert own.tolist() == [2, 3, int(torch.randint(2**62, (1,)))]


@pytest.mark.usefixtures("told")
def test_positions_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4, 3\] positions.*exchange=False"):
        agree_on_rows(2, 4, CPU, draw=False)
