"""Batches with the domain of each sample, and with images of a target domain."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import DomainSteps
from batchformer.lab.data.feeds.with_domain import WithDomain, WithTarget
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import digits_test, digits_train

DOMAIN = torch.arange(24) % 3
SPLIT = ImageSplit(
    torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator()),
    torch.arange(24) % 5,
)


def source() -> Feed:
    steps = DomainSteps(DOMAIN, groups=2, each=4, seed=0, per_epoch=9)
    return Feed(SPLIT, digits_train(), 8, 0, steps=steps)


def test_the_domain_of_each_sample() -> None:
    feed = WithDomain(source(), DOMAIN)
    assert feed.per_epoch == 9
    for step in (0, 5, 30):
        batch, alone = feed.batch(step), source().batch(step)
        assert set(batch) == {"x", "y", "index", "domain"}
        assert torch.equal(batch["domain"], alone["index"] % 3)
        assert all(torch.equal(batch[key], alone[key]) for key in alone)
        assert len(set(batch["domain"][:4].tolist())) == 1


def test_domains_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"int64 of shape \(M,\), got torch.float32"):
        WithDomain(source(), DOMAIN.float())


def test_the_target_comes_without_labels() -> None:
    other = ImageSplit(SPLIT.x.flip(0)[:10], SPLIT.y[:10])
    target = Feed(other, digits_test(), 5, 1, drop_last=True)
    feed = WithTarget(WithDomain(source(), DOMAIN), target)
    assert feed.per_epoch == 9
    batch, alone = feed.batch(7), target.batch(7)
    assert set(batch) == {"x", "y", "index", "domain", "x_target"}
    assert torch.equal(batch["x_target"], alone["x"]) and len(batch["x_target"]) == 5
    assert torch.equal(batch["y"], source().batch(7)["y"])


class Open:
    per_epoch = 1

    def __init__(self) -> None:
        self.closed = 0

    def batch(self, step: int) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1


def test_closing_reaches_all_feeds_and_passes_over_those_in_memory() -> None:
    first, second = Open(), Open()
    WithTarget(WithDomain(first, DOMAIN), second).close()
    assert (first.closed, second.closed) == (1, 1)
    WithTarget(WithDomain(source(), DOMAIN), source()).close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_domains_are_where_batches_are() -> None:
    steps = DomainSteps(DOMAIN, groups=2, each=4, seed=0)
    feed = Feed(SPLIT, digits_train(), 8, 0, device="cuda", steps=steps)
    batch = WithDomain(feed, DOMAIN, "cuda").batch(3)
    assert batch["domain"].device == batch["y"].device
    assert batch["domain"].tolist() == DOMAIN[steps.index(3)].tolist()
