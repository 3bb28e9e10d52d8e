"""Balanced classes, whatever their sizes, as a function of the epoch."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.data.order import Steps
from batchformer.data.samplers import ClassBalanced


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
