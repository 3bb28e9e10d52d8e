"""Which ranks there are; what real groups say of it is in test_exchange.py."""

from __future__ import annotations

import pytest
from torch import distributed as dist

from batchformer.nn.exchange import as_single_rank, is_rank_zero, rank, world_size


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent here, so that a rank may be played."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 3)
    monkeypatch.setattr(dist, "get_rank", lambda group: 1)


def test_without_a_group_there_is_one() -> None:
    assert (rank(), world_size()) == (0, 1) and is_rank_zero()


@pytest.mark.usefixtures("second_of_three")
def test_within_a_group_it_is_one_of_several() -> None:
    assert (rank(), world_size()) == (1, 3) and not is_rank_zero()


@pytest.mark.usefixtures("second_of_three")
def test_lock_there_is_one_until_the_last_block_is_left() -> None:
    with pytest.raises(KeyError), as_single_rank():
        with as_single_rank():
            assert (rank(), world_size()) == (0, 1) and is_rank_zero()
        assert (rank(), world_size()) == (0, 1)
        raise KeyError
    assert (rank(), world_size()) == (1, 3)


def test_a_torch_without_collectives_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert (rank(), world_size()) == (0, 1)
