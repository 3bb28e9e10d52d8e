"""What tasks share: a split that no seed changes, and batches for training and scoring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.loader import FileFeed, View
from batchformer.lab.data.feeds.memory import Feed, close
from batchformer.lab.data.feeds.order import Order, Sampler
from batchformer.lab.data.feeds.sharding import scored_rows
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import Transform
from batchformer.lab.engine.method import Batches

T = TypeVar("T")


class FixedSplit:
    """A task whose data is the same for every seed, without validation data."""

    def seeded(self: T, seed: int) -> T:
        """The task itself."""
        return self

    def draws(self) -> dict[str, str]:
        """Nothing."""
        return {}

    @property
    def unvalidated(self) -> str:
        """Why evaluations have no validation score to choose by."""
        return "this task has no validation data"


def memory_feed(
    part: ImageSplit,
    view: Transform,
    train: TrainConfig,
    seed: int,
    device: torch.device,
    *,
    second: Transform | None = None,
    sampler: Sampler | None = None,
    steps: Order | None = None,
) -> Feed:
    """Augmented training batches of images in memory; arguments as for :func:`file_feed`."""
    return Feed(
        part,
        view,
        train.batch_size,
        seed,
        train.drop_last,
        device,
        sampler,
        second=second,
        steps=steps,
        accumulate=train.accumulate,
    )


def file_feed(
    files: ImageFiles,
    view: View,
    train: TrainConfig,
    seed: int,
    device: torch.device,
    *,
    second: View | None = None,
    sampler: Sampler | None = None,
    steps: Order | None = None,
) -> FileFeed:
    """Augmented training batches of image files.

    Args:
        files: paths and labels.
        view: geometry and transform.
        train: size of batches, and how files are read.
        seed: of order and augmentation.
        device: where batches are made.
        second: another view of the same images, ``view2``.
        sampler: order of the samples in each epoch; None: every sample once, shuffled.
        steps: which samples each step takes, in place of batch size and sampler.
    """
    return FileFeed(
        files,
        *view,
        train.batch_size,
        seed,
        train.drop_last,
        device,
        train.workers,
        sampler=sampler,
        on_damaged=train.damaged,
        second=second,
        steps=steps,
        accumulate=train.accumulate,
    )


def scored_batches(
    part: ImageSplit, view: Transform, size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in memory as they are scored, without randomness, and their labels.

    With several ranks, these are the images that this rank scores, and the labels of all.
    """
    for x, y in zip(torch.split(part.x, size), torch.split(part.y, size), strict=True):
        own = x[scored_rows(len(x))].to(device)
        yield view(own, torch.empty(len(own), 0, dtype=torch.float64)), y


@dataclass(frozen=True)
class WithMeta:
    """Batches of `feed` that also hold ``meta_x`` and ``meta_y``, the batch of `meta`.

    Args:
        feed: counts the epochs.
        meta: gives a second batch for the same step, which scores an update.
    """

    feed: Batches
    meta: Batches

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch of `feed`."""
        return self.feed.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x``, ``y``, ``index``, ``meta_x`` and ``meta_y``."""
        other = self.meta.batch(step)
        return {**self.feed.batch(step), "meta_x": other["x"], "meta_y": other["y"]}

    def close(self) -> None:
        """Close both feeds."""
        close(self.feed)
        close(self.meta)
