"""The samples of a step are a function of the step, in epochs and by domains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.data.feeds import order as module
from batchformer.lab.data.feeds.order import DomainSteps, Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.nn.randomness import generator


@settings(max_examples=60)
@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**31),
    epochs=st.permutations(range(3)),
)
def test_an_epoch_is_cut_into_batches_in_whatever_order_steps_come(
    samples: int, batch_size: int, drop_last: bool, seed: int, epochs: list[int]
) -> None:
    if drop_last and samples < batch_size:
        with pytest.raises(ValueError, match=f"no full batch of {batch_size}"):
            Steps(Shuffle(samples, seed), batch_size, drop_last)
        return
    steps = Steps(Shuffle(samples, seed), batch_size, drop_last)
    sizes = set()
    for epoch in epochs:
        drawn = torch.randperm(samples, generator=generator(seed, "order", epoch)).split(batch_size)
        expected = [part for part in drawn if len(part) == batch_size or not drop_last]
        assert steps.per_epoch == len(expected)
        for position in reversed(range(len(expected))):
            index = steps.index(epoch * steps.per_epoch + position)
            assert torch.equal(index, expected[position])
            sizes.add(len(index))
    assert steps.sizes == tuple(sorted(sizes))


def test_batches_of_nothing_are_refused() -> None:
    for samples, batch_size in ((0, 4), (4, 0), (4, -1)):
        with pytest.raises(ValueError, match="make no batch"):
            Steps(Shuffle(samples, 0), batch_size)


# Steps by domains.

#: Steps drawn together in these tests; fewer than usual, so that several blocks take little time.
BLOCK = 16


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with patch.object(module, "BLOCK", BLOCK):
        yield


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, int, int, int]:
    """Domain of each sample in mixed order, domains in a batch, samples of each, and a seed."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    seed = draw(st.integers(0, 2**31))
    domain = domains(*sizes)
    mixed = domain[torch.randperm(len(domain), generator=torch.Generator().manual_seed(seed))]
    return mixed, draw(st.integers(1, len(sizes))), draw(st.integers(1, 9)), seed


def domains(*sizes: int) -> Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


@settings(max_examples=20)
@given(cases(), st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=6))
def test_a_batch_is_blocks_of_domains_and_a_stream_is_passes(
    case: tuple[Tensor, int, int, int], wanted: list[int]
) -> None:
    domain, groups, each, _ = case
    steps, every = DomainSteps(*case), []
    streams: dict[int, list[int]] = {number: [] for number in range(int(domain.max()) + 1)}
    for step in range(3 * BLOCK + 5):
        before = [len(stream) // each for stream in streams.values()]
        index = steps.index(step)
        every.append(index)
        assert index.shape == (groups * each,) and index.dtype == torch.int64
        blocks = domain[index].view(groups, each)
        assert torch.equal(blocks, blocks[:, :1].expand(-1, each))
        numbers = blocks[:, 0].tolist()
        assert numbers == sorted(set(numbers))
        assert steps.turns(step) == [(number, before[number]) for number in numbers]
        for number, own in zip(numbers, index.view(groups, each).tolist(), strict=True):
            streams[number] += own
    for number, stream in streams.items():
        members = (domain == number).nonzero()[:, 0].tolist()
        for start in range(0, len(stream) - len(members) + 1, len(members)):
            assert sorted(stream[start : start + len(members)]) == members
    jumping = DomainSteps(*case)
    for step in wanted:  # a function of the step alone
        assert torch.equal(jumping.index(step), every[step])
        assert torch.equal(DomainSteps(*case).index(step), every[step])


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
    times = Counter(tuple(number for number, _ in steps.turns(step)) for step in range(count))
    assert len(times) == 6
    # A sixth of the steps each: a standard deviation of 20.4 around 500.
    assert max(abs(number - count / 6) for number in times.values()) < 4 * 20.4


def test_the_length_of_an_epoch() -> None:
    assert DomainSteps(domains(7, 30, 12), 3, each=4, seed=0).per_epoch == 7
    assert DomainSteps(domains(3, 2), 2, each=4, seed=0).per_epoch == 1
    assert DomainSteps(domains(3, 2), 1, each=4, seed=0, per_epoch=500).per_epoch == 500


def test_a_distant_step_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = DomainSteps(domains(3, 3, 3), groups=2, each=1, seed=0)
    drawn: list[int] = []
    draw = steps._drawn
    monkeypatch.setattr(steps, "_drawn", lambda block: drawn.append(block) or draw(block))
    steps.index(500)
    assert len(drawn) == 500 // BLOCK + 1
    drawn.clear()
    for step in range(501, 501 + BLOCK):
        steps.index(step)
    assert len(drawn) <= 2


@pytest.mark.parametrize(
    ("sizes", "groups", "options", "words"),
    [
        ((4, 4), 3, {"each": 1}, "3 domains cannot be made from 2: take 1 to 2"),
        ((4, 0, 4), 2, {"each": 1}, "domain 1 of 3 has none"),
        ((0,), 1, {"each": 1}, "there is none"),
    ],
)
def test_batches_that_cannot_be_had(
    sizes: tuple[int, ...], groups: int, options: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        DomainSteps(domains(*sizes), groups, seed=0, **options)
