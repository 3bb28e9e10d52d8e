"""Balanced classes and repeated images, as a function of the epoch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler

from batchformer.lab.data.feeds.order import ClassBalanced, Repeated, Steps, sampler_named
from batchformer.nn.randomness import generator


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
