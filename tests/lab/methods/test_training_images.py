"""The bank of training images."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.methods.training_images import Bank


def bank_of(counts: list[int], seed: int = 0) -> Bank:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.arange(len(labels))[:, None].float()
    batches = [*zip(torch.split(images, 7), torch.split(labels, 7), strict=True)]
    return Bank(labels, seed, lambda: batches)


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(1, 40), min_size=2, max_size=6), seed=st.integers(0, 5))
def test_classes_of_a_long_tail_are_equally_often_there(counts: list[int], seed: int) -> None:
    features, labels = bank_of(counts, seed)(lambda x: x)
    rows = features[:, 0].long()
    assert len(rows) == sum(counts)
    assert torch.equal(bank_of(counts).labels[rows], labels)
    if max(counts) < 2 * min(counts):
        assert rows.tolist() == list(range(sum(counts))), "balanced: every image once, in order"
    else:
        found = labels.bincount(minlength=len(counts))
        assert found.max() - found.min() <= 1
        for label, count in enumerate(counts):
            often = rows[labels == label].bincount()
            often = often[often > 0]
            assert len(often) == min(count, int(found[label])) and often.max() - often.min() <= 1


def test_the_seed_draws_and_an_image_is_encoded_once() -> None:
    seen: list[int] = []

    def extract(x: torch.Tensor) -> torch.Tensor:
        seen.extend(x[:, 0].long().tolist())
        return x

    counts = [60, 20, 2]
    first, _ = bank_of(counts, 0)(extract)
    assert seen == list(range(82))
    again, _ = bank_of(counts, 0)(lambda x: x)
    other, _ = bank_of(counts, 1)(lambda x: x)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_classes_without_images_are_left_out() -> None:
    labels = torch.tensor([0, 0, 0, 0, 2])
    bank = Bank(labels, 0, lambda: [(torch.zeros(5, 1), labels)])
    _, found = bank(lambda x: x)
    assert sorted(found.bincount(minlength=3).tolist()) == [0, 2, 3]


def test_half_precision_arrives_in_single() -> None:
    features, _ = bank_of([2, 2])(lambda x: x.half())
    assert features.dtype == torch.float32
