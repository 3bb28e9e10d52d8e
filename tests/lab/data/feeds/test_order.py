"""The samples of a step are a function of the step, for every sampler and for domains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler
from torch import Tensor

from batchformer.lab.data.feeds import order as module
from batchformer.lab.data.feeds.order import (
    ClassBalanced,
    DomainSteps,
    InOrder,
    Repeated,
    Shuffle,
    Steps,
    order_of,
    sampler_named,
)
from batchformer.nn.randomness import generator


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 25), st.integers(0, 2**31), st.integers(0, 50))
def test_an_epoch_is_a_permutation(samples: int, batch_size: int, seed: int, epoch: int) -> None:
    steps = Steps(Shuffle(samples, seed), batch_size)
    first = epoch * steps.per_epoch
    batches = [steps.index(step) for step in range(first, first + steps.per_epoch)]
    assert sorted(torch.cat(batches).tolist()) == list(range(samples))
    sizes = [len(batch) for batch in batches]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1) and 0 < sizes[-1] <= batch_size


@settings(max_examples=40)
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


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_classes_come_in_rounds_and_images_in_cycles(
    sizes: list[int], seed: int, epoch: int
) -> None:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    sampler = ClassBalanced(labels, seed)
    order = sampler.order(epoch)
    assert order.shape == (len(labels),) == (sampler.length,)
    present = [c for c, size in enumerate(sizes) if size]
    drawn = labels[order]
    for start in range(0, len(drawn), len(present)):
        part = drawn[start : start + len(present)].tolist()
        assert len(set(part)) == len(part) and set(part) <= set(present)
    for c in present:
        shown = order[drawn == c].bincount(minlength=len(labels))[labels == c]
        assert int(shown.max() - shown.min()) <= 1, "no image twice before all were shown"


def test_an_order_is_of_its_seed_epoch_and_stream() -> None:
    labels = torch.arange(60) % 7
    first = ClassBalanced(labels, 0).order(0)
    assert torch.equal(first, ClassBalanced(labels, 0).order(0))
    others = [
        ClassBalanced(labels, 0).order(1),
        ClassBalanced(labels, 1).order(0),
        ClassBalanced(labels, 0, stream=1).order(0),
    ]
    assert not any(torch.equal(first, other) for other in others)


def test_batches_of_all_classes_hold_each_once() -> None:
    labels = torch.tensor([0] * 30 + [1] * 5 + [2])
    steps = Steps(ClassBalanced(labels, 3), batch_size=3)
    assert steps.per_epoch == 12
    for step in range(24):
        assert labels[steps.index(step)].sort().values.tolist() == [0, 1, 2]


def test_classes_that_give_several_images_at_their_turn() -> None:
    """Batches of four classes with three images each, as OLTR has 32 classes with four."""
    labels = torch.arange(8).repeat_interleave(torch.tensor([20, 9, 4, 3, 2, 1, 1, 8]))
    steps = Steps(ClassBalanced(labels, 2, per_turn=3), batch_size=12)
    for step in range(steps.per_epoch):
        index = steps.index(step)
        assert labels[index][::3].unique().numel() == 4, "each class has one turn in a batch"
        assert all(labels[turn].unique().numel() == 1 for turn in index.split(3))
    order = ClassBalanced(labels, 2, per_turn=3).order(0)
    for c in range(8):
        shown = order[labels[order] == c].bincount(minlength=len(labels))[labels == c]
        assert int(shown.max() - shown.min()) <= 1, "no image twice before all were shown"


def test_images_repeated_three_times_by_hand() -> None:
    """Ten images in batches of four: a third of them, the last one cut off."""
    sampler = Repeated(images=10, seed=0)
    drawn = torch.randperm(10, generator=generator(0, "order", 2)).tolist()
    a, b, c, d = drawn[:4]
    assert sampler.length == 10
    assert sampler.order(2).tolist() == [a, a, a, b, b, b, c, c, c, d]
    steps = Steps(sampler, batch_size=4, drop_last=True)
    assert [steps.index(4 + k).tolist() for k in (0, 1)] == [[a, a, a, b], [b, b, c, c]]
    assert not torch.equal(sampler.order(0), sampler.order(1))


@pytest.mark.parametrize(("images", "processes"), [(255, 4), (256, 1), (700, 4), (1024, 4)])
def test_an_epoch_is_that_of_timms_processes_together(images: int, processes: int) -> None:
    order = Repeated(images, seed=3).order(0)
    if images < 256:  # where the epoch of earlier timms is empty
        assert len(order) == images
        return
    samplers = [RepeatAugSampler(range(images), processes, rank) for rank in range(processes)]
    # Their permutation in place of ours: what is left is which positions an epoch takes.
    drawn = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    theirs = [list(sampler) for sampler in samplers]
    dealt = [position for turn in zip(*theirs, strict=True) for position in turn]
    assert dealt == drawn.repeat_interleave(3)[: len(order)].tolist()
    assert torch.equal(order.unique_consecutive(), order[::3])


def test_samplers_by_name() -> None:
    labels = torch.tensor([0, 0, 1])
    assert sampler_named("shuffle", labels, 0) is None
    balanced = sampler_named("class_balanced", labels, 0, per_turn=4)
    assert isinstance(balanced, ClassBalanced) and balanced.per_turn == 4
    assert sampler_named("repeated", labels, 5) == Repeated(3, 5)


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
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    mixed = domain[torch.randperm(len(domain), generator=torch.Generator().manual_seed(seed))]
    return mixed, draw(st.integers(1, len(sizes))), draw(st.integers(1, 9)), seed


@settings(max_examples=15)
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


@settings(max_examples=20)
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
