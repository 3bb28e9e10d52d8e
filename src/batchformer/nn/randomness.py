"""Random numbers by purpose: each draw is a function of (seed, purpose, step).

There is no single running stream. Adding a module, or resuming in the middle, therefore changes no
other draw: the same seed gives the same weights, order, augmentation and dropout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

#: "split" decides which samples are trained on and which are held out.
Purpose = Literal["weights", "module weights", "order", "augmentation", "dropout", "split"]


def seed_for(seed: int, purpose: Purpose, *steps: int) -> int:
    """A 63-bit seed, a hash of (seed, purpose, steps).

    >>> seed_for(0, "order", 1) == seed_for(0, "order", 1) != seed_for(0, "order", 2)
    True
    """
    words = ":".join(map(str, (seed, purpose, *steps)))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: Purpose, *steps: int) -> torch.Generator:
    """A CPU generator for one purpose at one step."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *steps))


@contextmanager
def drawing(seed: int, purpose: Purpose, *steps: int) -> Iterator[None]:
    """Seed torch's global generators for one purpose within the block, and restore them after."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed_for(seed, purpose, *steps))
        yield
