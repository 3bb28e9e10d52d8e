"""Which test images are looked at: rules that depend on labels and a seed, never on a network."""

from __future__ import annotations

import torch
from torch import Tensor

from batchformer.insight.record import SHOTS
from batchformer.nn.randomness import generator

#: Each draw has its own generator. Its key is negative, so it is never a step of training.
MEASURED, PROJECTED, CAM, EXPLORED = -1, -2, -3, -4


def balanced(labels: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """Pick rows (min(M, most),): one of each class, then another of each, ... Shuffle them.

    ``labels`` is (M,).
    """
    labels = labels.cpu()
    shuffled = torch.randperm(len(labels), generator=draw)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    turn = torch.empty_like(labels)
    turn[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    again = torch.randperm(len(labels), generator=draw)
    chosen = again[turn[again].argsort(stable=True)][:most]
    return chosen[torch.randperm(len(chosen), generator=draw)]


def by_shots(labels: Tensor, shot_of_class: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """Draw rows evenly over the shot groups that have images: many, medium, then few.

    Classes of a group are drawn evenly. A group with too few images gives all of them.
    """
    shot = shot_of_class.cpu()[labels.cpu()]
    groups = [(shot == group).nonzero().flatten() for group in range(len(SHOTS))]
    groups = [rows for rows in groups if len(rows)]
    each = most // max(1, len(groups))
    return torch.cat([rows[balanced(labels.cpu()[rows], each, draw)] for rows in groups])


def like_training(
    labels: Tensor, train_counts: Tensor, batches: int, size: int, draw: torch.Generator
) -> Tensor:
    """Rows (B, N): batches whose classes are as frequent as among the training images.

    The chance of an image is the number of training images of its class, divided by the number of
    test images of its class. No image is drawn twice in a batch, so a class with few test images
    is rarer than in training. Classes without a training image are drawn last. If one batch holds
    all images, there is only that one.
    """
    labels, counts = labels.cpu(), train_counts.cpu().double()
    tested = torch.bincount(labels, minlength=len(counts)).double()
    # Every image has a chance, so there are always enough to draw.
    chance = (counts[labels] + 1e-6) / tested[labels]
    if size >= len(labels):
        size, batches = len(labels), 1
    return torch.stack([torch.multinomial(chance, size, generator=draw) for _ in range(batches)])


def generator_of(purpose: int, seed: int = 0) -> torch.Generator:
    """The generator of one of the draws, such as ``MEASURED``."""
    return generator(seed, "order", purpose)
