"""Every sampler's order: brute force over its counts, timm's repeats, and distributions."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from timm.data.distributed_sampler import RepeatAugSampler
from torch import Tensor

from batchformer.lab.config.data import SamplerName
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import (
    ClassBalanced,
    Mates,
    Repeated,
    Shuffle,
    sampler_named,
)
from batchformer.nn.randomness import generator


def mixed_labels(sizes: list[int], seed: int) -> Tensor:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    per_turn=st.integers(1, 4),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_classes_come_in_rounds_and_images_in_cycles(
    sizes: list[int], per_turn: int, seed: int, epoch: int
) -> None:
    labels = mixed_labels(sizes, 1)
    sampler = ClassBalanced(labels, seed, per_turn=per_turn)
    order = sampler.order(epoch)
    assert order.shape == (len(labels),) == (sampler.length,)
    present = [c for c, size in enumerate(sizes) if size]
    drawn = labels[order]
    assert all(len(turn.unique()) == 1 for turn in drawn.split(per_turn))
    for one_round in drawn[::per_turn].split(len(present)):
        assert len(one_round.unique()) == len(one_round) and set(one_round.tolist()) <= set(present)
    for c in present:
        times = order[drawn == c].bincount(minlength=len(labels))[labels == c]
        assert int(times.max() - times.min()) <= 1, "no image twice before all were shown"


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


@pytest.mark.parametrize(("images", "processes"), [(10, 1), (256, 1), (700, 4), (1024, 4)])
def test_repeated_images_are_those_of_timms_processes_together(images: int, processes: int) -> None:
    order = Repeated(images, seed=3).order(2)
    drawn = torch.randperm(images, generator=generator(3, "order", 2))
    assert torch.equal(order, drawn.repeat_interleave(3)[: len(order)])
    if images < 256:  # timm's epoch would be empty
        assert len(order) == images
        return
    theirs = [RepeatAugSampler(range(images), processes, rank) for rank in range(processes)]
    positions = [position for turn in zip(*theirs, strict=True) for position in turn]
    # Their permutation in place of ours: what is left is which positions an epoch takes.
    drawn = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    assert positions == drawn.repeat_interleave(3)[: len(order)].tolist()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 2**31))
def test_mates_are_of_one_class_and_every_image_comes_twice(sizes: list[int], seed: int) -> None:
    """In two epochs; counted image by image."""
    labels = mixed_labels(sizes, seed)
    sampler, images = Mates(labels, seed), range(len(labels))
    for epoch in (0, 2):
        orders = [sampler.order(2 * epoch + half).tolist() for half in (0, 1)]
        pairs = [pair for one in orders for pair in zip(one[::2], one[1::2], strict=False)]
        for image, mate in pairs:
            assert labels[image] == labels[mate]
            assert image != mate or sizes[int(labels[image])] == 1
        shuffled = Shuffle(len(labels), seed).order(epoch).tolist()
        times = Counter(orders[0] + orders[1])
        if len(labels) % 2 == 0:
            assert orders[0][::2] + orders[1][::2] == shuffled, "the usual order, at half the speed"
            assert times == dict.fromkeys(images, 2)
            continue
        middle, last = shuffled[len(labels) // 2], shuffled[-1]
        assert orders[0][::2] == shuffled[: len(labels) // 2 + 1]
        assert orders[1][::2] == shuffled[len(labels) // 2 :]
        by_class = Counter(int(labels[image]) for image in times.elements())
        expected = Counter({number: 2 * size for number, size in enumerate(sizes)})
        expected[int(labels[middle])] += 1
        expected[int(labels[last])] -= 1
        assert by_class == +expected


def test_batches_of_mates_have_the_classes_of_the_data() -> None:
    """Counts of a class in a batch against those of half as many images without replacement."""
    sizes = (40, 14, 5, 1)
    labels = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    draws, batch = 600, 20
    counts = torch.empty(2, draws, 4, dtype=torch.float64)
    for seed in range(draws):
        for place, step in enumerate((1, 4)):  # the second batch of epochs 0 and 1
            index = Steps(Mates(labels, seed), batch).index(step)
            counts[place, seed] = labels[index].bincount(minlength=4)
    for found in counts:
        for number, size in enumerate(sizes):
            drawn = stats.hypergeom(len(labels), size, batch // 2)
            mean, variance = 2 * drawn.mean(), 4 * drawn.var()
            assert mean == pytest.approx(batch * size / len(labels)), "as in a shuffled batch"
            own = found[:, number]
            assert abs(float(own.mean()) - mean) < 4 * (variance / draws) ** 0.5
            assert float(own.var()) == pytest.approx(variance, rel=0.25)


def test_samplers_by_name() -> None:
    labels = torch.tensor([0, 0, 1])
    for name in get_args(SamplerName):
        sampler = sampler_named(name, labels, 5)
        assert sampler.order(1).shape == (sampler.length,)
    assert sampler_named("shuffle", labels, 5) == Shuffle(3, 5)
    balanced = sampler_named("class_balanced", labels, 0, per_turn=4)
    assert isinstance(balanced, ClassBalanced) and balanced.per_turn == 4
    assert sampler_named("repeated", labels, 5) == Repeated(3, 5)
    mates = sampler_named("mates", labels, 5)
    assert isinstance(mates, Mates) and mates.seed == 5
