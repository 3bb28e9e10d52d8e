"""The samples of a step are a function of the step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.feeds.order import InOrder, Shuffle, Steps, order_of
from batchformer.nn.randomness import generator


@given(st.integers(1, 60), st.integers(1, 25), st.integers(0, 2**31), st.integers(0, 50))
def test_an_epoch_is_a_permutation(samples: int, batch_size: int, seed: int, epoch: int) -> None:
    steps = Steps(Shuffle(samples, seed), batch_size)
    first = epoch * steps.per_epoch
    batches = [steps.index(step) for step in range(first, first + steps.per_epoch)]
    assert sorted(torch.cat(batches).tolist()) == list(range(samples))
    sizes = [len(batch) for batch in batches]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1) and 0 < sizes[-1] <= batch_size


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_without_the_last_batch_all_are_full(samples: int, batch_size: int, epoch: int) -> None:
    if samples < batch_size:
        with pytest.raises(ValueError, match=f"no full batch of {batch_size}"):
            Steps(Shuffle(samples, 0), batch_size, drop_last=True)
        return
    steps = Steps(Shuffle(samples, 0), batch_size, drop_last=True)
    assert steps.per_epoch == samples // batch_size
    first = epoch * steps.per_epoch
    taken = torch.cat([steps.index(step) for step in range(first, first + steps.per_epoch)])
    assert len(taken) == steps.per_epoch * batch_size == len(set(taken.tolist()))


def test_the_order_is_drawn_from_seed_and_epoch() -> None:
    expected = torch.randperm(30, generator=generator(4, "order", 2))
    assert torch.equal(Shuffle(30, seed=4).order(2), expected)
    steps = Steps(Shuffle(30, seed=4), batch_size=8)
    assert torch.equal(steps.index(2 * 4 + 3), expected[24:])


def test_steps_in_any_order() -> None:
    forward, backward = Steps(Shuffle(23, 1), 5), Steps(Shuffle(23, 1), 5)
    expected = [forward.index(step) for step in range(12)]
    for step in reversed(range(12)):
        assert torch.equal(backward.index(step), expected[step])


def test_in_order() -> None:
    steps = Steps(InOrder(5), 2)
    assert [steps.index(step).tolist() for step in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


@dataclass(frozen=True)
class Repeating:
    length: int
    made: int

    def order(self, epoch: int) -> Tensor:
        return torch.full((self.made,), epoch)


def test_a_sampler_sets_the_length_of_an_epoch() -> None:
    steps = Steps(Repeating(5, made=5), batch_size=3)
    assert [steps.index(step).tolist() for step in range(4)] == [[0] * 3, [0] * 2, [1] * 3, [1] * 2]
    with pytest.raises(ValueError, match=r"Repeating.order\(1\) has the shape \(4,\) .* \(5,\)"):
        Steps(Repeating(5, made=4), batch_size=3).index(2)


@pytest.mark.parametrize(("samples", "batch_size"), [(0, 4), (4, 0), (4, -1)])
def test_no_batches(samples: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="make no batch"):
        Steps(Shuffle(samples, 0), batch_size)


def test_the_order_a_feed_is_asked_for() -> None:
    shuffled = order_of(23, 1, 5, True, None, None)
    assert shuffled.per_epoch == 4
    assert torch.equal(shuffled.index(6), Steps(Shuffle(23, 1), 5, drop_last=True).index(6))
    assert order_of(23, 1, 5, False, InOrder(23), None).index(1).tolist() == [5, 6, 7, 8, 9]
    own = Steps(InOrder(4), 2)
    assert order_of(23, 1, 5, False, None, own) is own
    with pytest.raises(ValueError, match="give one of them, not both"):
        order_of(23, 1, 5, False, InOrder(23), own)
