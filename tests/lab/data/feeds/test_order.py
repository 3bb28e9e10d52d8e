"""The samples of a step are a function of the step, for every sampler and for domains."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler
from torch import Tensor

from batchformer.lab.data.feeds.order import (
    ClassBalanced,
    InOrder,
    Repeated,
    Shuffle,
    Steps,
    order_of,
    sampler_named,
)
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


@settings(max_examples=50, deadline=None)
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


@pytest.mark.parametrize("images", [255, 256, 700, 1024])
@pytest.mark.parametrize("processes", [1, 4])
def test_an_epoch_is_that_of_timms_processes_together(images: int, processes: int) -> None:
    order = Repeated(images, seed=3).order(0)
    samplers = [RepeatAugSampler(range(images), processes, rank) for rank in range(processes)]
    if images < 256:  # where timm's epoch would be empty
        assert len(samplers[0]) == 0 and len(order) == images
        return
    # Their permutation in place of ours: what is left is which positions an epoch takes.
    drawn = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    theirs = [list(sampler) for sampler in samplers]
    dealt = [position for turn in zip(*theirs, strict=True) for position in turn]
    assert dealt == drawn.repeat_interleave(3)[: len(order)].tolist()
    assert torch.equal(order.unique_consecutive(), order[::3])


def test_samplers_by_name() -> None:
    labels = torch.tensor([0, 0, 1])
    assert sampler_named("shuffle", labels, 0) is None
    assert isinstance(sampler_named("class_balanced", labels, 0), ClassBalanced)
    assert sampler_named("repeated", labels, 5) == Repeated(3, 5)
