"""Batches of image files as a training asks for them."""

from __future__ import annotations

import torch

from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.loader import FileFeed, View
from batchformer.lab.data.feeds.order import Order, Sampler
from batchformer.lab.data.files.image_files import ImageFiles


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
    """Shuffled, augmented batches.

    Args:
        files: paths and labels.
        view: geometry and transform.
        train: size of batches, and how files are read.
        seed: of order and augmentation.
        device: where batches are made.
        second: another view of the same images, ``view2``.
        sampler: order of the samples in each epoch; None: every one once, shuffled.
        steps: which samples each step takes, in place of sizes and sampler.
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
