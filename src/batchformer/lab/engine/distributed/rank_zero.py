"""What ranks agree on besides tensors of a training: on the CPU, by a group of its own.

On one rank nothing is sent, and every question is answered by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from batchformer.nn.exchange import all_reduce_max_, as_single_rank, broadcast_, world_size

T = TypeVar("T")


class RankZeroFailed(RuntimeError):
    """Rank 0 could not do what all wait for; it says why itself."""


_group: tuple[Any, Any] = (None, None)


def group() -> Any:
    """A gloo group of all ranks, made when first asked for; every rank asks."""
    global _group
    whole = dist.group.WORLD
    if _group[0] is not whole:
        _group = (whole, dist.new_group(backend="gloo"))
    return _group[1]


def max_over_ranks(number: int) -> int:
    """The highest number that a rank has; every rank calls it."""
    if world_size() == 1:
        return number
    found = torch.tensor(number)
    all_reduce_max_(found, group())
    return int(found)


def bytes_from_rank_zero(make: Callable[[], bytes | None]) -> bytes | None:
    """What rank 0 makes, on all ranks; the others make nothing. Every rank calls it.

    Raises:
        FirstFailed: on the other ranks, if rank 0 fails; there, its own error.
    """
    if world_size() == 1:
        return make()
    if dist.get_rank():
        return _received()
    try:
        with as_single_rank():
            made = make()
    except Exception as error:
        _sent(-2, f"{type(error).__name__}: {error}".encode())
        raise
    _sent(-1 if made is None else len(made), made or b"")
    return made


def on_rank_zero(make: Callable[[], T]) -> T:
    """The same for what JSON can hold."""
    if world_size() == 1:
        return make()
    said = bytes_from_rank_zero(lambda: json.dumps(make()).encode())
    answer: T = json.loads(said or b"null")
    return answer


def _sent(kind: int, content: bytes) -> None:
    header = torch.tensor([kind, len(content)])
    broadcast_(header, group())
    if content:
        broadcast_(_as_tensor(content), group())


def _received() -> bytes | None:
    header = torch.zeros(2, dtype=torch.int64)
    broadcast_(header, group())
    kind, length = header.tolist()
    content = torch.empty(length, dtype=torch.uint8)
    if length:
        broadcast_(content, group())
    words = content.numpy().tobytes()
    if kind == -2:
        raise RankZeroFailed(words.decode())
    return None if kind == -1 else words


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
