"""Random numbers by what they are for: each draw is a function of (seed, purpose, step).

Nothing is drawn from one running stream, so that adding a module, or resuming in the middle,
changes no other draw: same seed, same weights, same order, same augmentation, same dropout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

#: "split" is which samples are trained on and which are held out, or dealt to which part.
Purpose = Literal["weights", "module weights", "order", "augmentation", "dropout", "split"]


def seed_for(seed: int, purpose: Purpose, *steps: int) -> int:
    """A 63-bit seed that no other (seed, purpose, step) shares.

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
    """Let torch's own generator serve one purpose inside the block, and restore it after."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed_for(seed, purpose, *steps))
        yield


def seed_device(device: torch.device, number: int) -> None:
    """Let torch's own generators, of the CPU and of one device, draw from a seed from here on.

    ``torch.manual_seed`` would also reach for accelerators that are not in use.
    """
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    elif device.type == "mps":
        torch.mps.manual_seed(number)
    elif device.type == "xpu":
        torch.xpu.manual_seed(number)
