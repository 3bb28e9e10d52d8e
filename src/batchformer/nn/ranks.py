"""Which ranks there are, and which one this is; without a process group there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


def group_of(exchange: Any) -> Any:
    """The process group that ``exchange=`` names: a group, a mesh of one, or a bool for all."""
    if isinstance(exchange, bool):
        return None
    return exchange.get_group() if hasattr(exchange, "get_group") else exchange


def ranks(group: Any = None) -> int:
    """How many ranks there are, in a process group or, by default, in all.

    1 without an initialised process group, and within `alone`.
    """
    if _alone or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(group)


def rank(group: Any = None) -> int:
    """The number of this one, from 0, in a process group or, by default, among all."""
    return dist.get_rank(group) if ranks(group) > 1 else 0


def leads() -> bool:
    """Whether this is the rank that writes and speaks."""
    return rank() == 0
