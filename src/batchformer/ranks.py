"""Which ranks there are, and which one this is; without a process group there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed as dist

#: How deep this process is in blocks that it runs alone.
_alone = 0


@contextmanager
def alone() -> Iterator[None]:
    """Within it there is one rank: what is done here waits for no other.

    >>> with alone():
    ...     ranks()
    1
    """
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def ranks() -> int:
    """How many ranks there are; 1 without an initialised process group, and within `alone`."""
    if _alone or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def rank() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if ranks() > 1 else 0


def leads() -> bool:
    """Whether this is the rank that writes and speaks."""
    return rank() == 0
