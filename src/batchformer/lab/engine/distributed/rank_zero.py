"""Small messages between ranks (numbers, bytes, JSON), on the CPU by a separate gloo group.

With one rank nothing is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import distributed as dist

from batchformer.nn.exchange import all_reduce_max_, as_single_rank, broadcast_, world_size

T = TypeVar("T")
P = ParamSpec("P")

#: What the header of a broadcast says instead of a length: rank 0 made None, or failed.
NOTHING, FAILED = -1, -2


class RankZeroFailed(RuntimeError):
    """Rank 0 failed at what all ranks wait for; it reports its error itself."""


_group: tuple[Any, Any] = (None, None)


def group() -> Any:
    """A gloo group of all ranks, created at the first call; every rank calls it."""
    global _group
    world = dist.group.WORLD
    if _group[0] is not world:
        _group = (world, dist.new_group(backend="gloo"))
    return _group[1]


def max_over_ranks(number: int) -> int:
    """The largest number of any rank; every rank calls it."""
    if world_size() == 1:
        return number
    found = torch.tensor(number)
    all_reduce_max_(found, group())
    return int(found)


def bytes_from_rank_zero(make: Callable[[], bytes | None]) -> bytes | None:
    """Call `make` on rank 0 and return its result on all ranks; every rank calls this.

    Raises:
        RankZeroFailed: on the other ranks, if rank 0 fails; rank 0 raises its own error.
    """
    if world_size() == 1:
        return make()
    if dist.get_rank():
        return _receive()
    try:
        with as_single_rank():
            made = make()
    except Exception as error:
        _send(FAILED, f"{type(error).__name__}: {error}".encode())
        raise
    _send(NOTHING if made is None else len(made), made or b"")
    return made


def on_rank_zero(make: Callable[[], T]) -> T:
    """Like :func:`bytes_from_rank_zero`, for a result that JSON can hold."""
    if world_size() == 1:
        return make()
    sent = bytes_from_rank_zero(lambda: json.dumps(make()).encode())
    result: T = json.loads(sent or b"null")
    return result


def by_rank_zero(function: Callable[P, T]) -> Callable[P, T]:
    """A function that rank 0 calls for all ranks, with a result that JSON can hold."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return on_rank_zero(lambda: function(*args, **kwargs))

    return called


def _send(kind: int, content: bytes) -> None:
    broadcast_(torch.tensor([kind, len(content)]), group())
    if content:
        broadcast_(torch.frombuffer(bytearray(content), dtype=torch.uint8), group())


def _receive() -> bytes | None:
    header = torch.zeros(2, dtype=torch.int64)
    broadcast_(header, group())
    kind, length = header.tolist()
    buffer = torch.empty(length, dtype=torch.uint8)
    if length:
        broadcast_(buffer, group())
    content = buffer.numpy().tobytes()
    if kind == FAILED:
        raise RankZeroFailed(content.decode())
    return None if kind == NOTHING else content
