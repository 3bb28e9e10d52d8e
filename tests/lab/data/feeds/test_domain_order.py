"""Batches by domains are a function of the step, in blocks, pass after pass."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.feeds import order
from batchformer.lab.data.feeds.order import DomainSteps

#: Steps drawn together in these tests; fewer than usual, so that several blocks take little time.
BLOCK = 16


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with patch.object(order, "BLOCK", BLOCK):
        yield


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, int, int, int]:
    """Domain of each sample in mixed order, domains in a batch, samples of each, and a seed."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    seed = draw(st.integers(0, 2**31))
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    mixed = domain[torch.randperm(len(domain), generator=torch.Generator().manual_seed(seed))]
    return mixed, draw(st.integers(1, len(sizes))), draw(st.integers(1, 9)), seed


@settings(deadline=None, max_examples=40)
@given(cases(), st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=6))
def test_samples_are_a_function_of_the_step(
    case: tuple[Tensor, int, int, int], wanted: list[int]
) -> None:
    in_turn = DomainSteps(*case)
    every = [in_turn.index(step) for step in range(max(wanted) + 1)]
    jumping = DomainSteps(*case)
    for step in wanted:
        assert torch.equal(jumping.index(step), every[step])
        assert torch.equal(DomainSteps(*case).index(step), every[step])


@settings(deadline=None, max_examples=60)
@given(cases())
def test_a_batch_is_blocks_of_domains_and_a_stream_is_passes(
    case: tuple[Tensor, int, int, int],
) -> None:
    domain, groups, each, _ = case
    steps = DomainSteps(*case)
    streams: dict[int, list[int]] = {number: [] for number in range(int(domain.max()) + 1)}
    for step in range(3 * BLOCK + 5):
        index = steps.index(step)
        assert index.shape == (groups * each,) and index.dtype == torch.int64
        blocks = domain[index].view(groups, each)
        assert torch.equal(blocks, blocks[:, :1].expand(-1, each))
        numbers = blocks[:, 0].tolist()
        assert numbers == sorted(set(numbers))
        for number, own in zip(numbers, index.view(groups, each).tolist(), strict=True):
            streams[number] += own
    for number, stream in streams.items():
        members = (domain == number).nonzero()[:, 0].tolist()
        for start in range(0, len(stream) - len(members) + 1, len(members)):
            assert sorted(stream[start : start + len(members)]) == members


def domains(*sizes: int) -> Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def test_all_domains_stand_in_every_batch() -> None:
    domain = domains(7, 30, 12)
    steps = DomainSteps(domain, groups=3, each=4, seed=0)
    for step in (0, 1, 100):
        assert domain[steps.index(step)].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_passes_seeds_and_domains_are_in_orders_of_their_own() -> None:
    steps = DomainSteps(domains(20, 20), groups=2, each=20, seed=0)
    first, second = steps.index(0), steps.index(1)
    assert not torch.equal(first[:20], second[:20])
    assert not torch.equal(first[:20], first[20:] - 20)
    other = DomainSteps(domains(20, 20), groups=2, each=20, seed=1)
    assert not torch.equal(first, other.index(0))


def test_every_set_of_domains_is_as_likely() -> None:
    steps = DomainSteps(domains(5, 5, 5, 5), groups=2, each=1, seed=0)
    count = 3000
    seen = [tuple(number for number, _ in steps.turns(step)) for step in range(count)]
    times = {pair: seen.count(pair) for pair in set(seen)}
    assert len(times) == 6
    # A sixth of the steps each: a standard deviation of 20.4 around 500.
    assert max(abs(number - count / 6) for number in times.values()) < 4 * 20.4


def test_turns_count_the_steps_before() -> None:
    steps = DomainSteps(domains(3, 3, 3), groups=2, each=1, seed=5)
    before = [0, 0, 0]
    for step in range(2 * BLOCK + 10):
        for number, turn in steps.turns(step):
            assert turn == before[number]
            before[number] += 1


def test_the_length_of_an_epoch() -> None:
    assert DomainSteps(domains(7, 30, 12), 3, each=4, seed=0).per_epoch == 7
    assert DomainSteps(domains(3, 2), 2, each=4, seed=0).per_epoch == 1
    assert DomainSteps(domains(3, 2), 1, each=4, seed=0, per_epoch=500).per_epoch == 500


def test_a_distant_step_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = DomainSteps(domains(3, 3, 3), groups=2, each=1, seed=0)
    drawn: list[int] = []
    draw = steps._drawn

    def counted(block: int) -> tuple[Tensor, Tensor]:
        drawn.append(block)
        return draw(block)

    monkeypatch.setattr(steps, "_drawn", counted)
    steps.index(500)
    assert len(drawn) == 500 // BLOCK + 1
    drawn.clear()
    for step in range(501, 501 + BLOCK):
        steps.index(step)
    assert len(drawn) <= 2


def test_batches_that_cannot_be_had() -> None:
    with pytest.raises(ValueError, match="3 domains cannot be made from 2: take 1 to 2"):
        DomainSteps(domains(4, 4), groups=3, each=1, seed=0)
    with pytest.raises(ValueError, match="domain 1 of 3 has none"):
        DomainSteps(domains(4, 0, 4), groups=2, each=1, seed=0)
    with pytest.raises(ValueError, match="there is none"):
        DomainSteps(domains(0), groups=1, each=1, seed=0)
    for options in ({"each": 0}, {"each": 1, "per_epoch": 0}):
        with pytest.raises(ValueError, match="take 1 or more"):
            DomainSteps(domains(4, 4), groups=2, seed=0, **options)
