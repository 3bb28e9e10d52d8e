"""Attention over samples for narrow heads, in one pass over the keys, without storing weights.

Queries, keys and values are planes ``(3, L N, C)``; a head is D channels side by side. Scores are
in units of log2. Of a row of weights, only log2 of the sum of their powers is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.dropout import threshold_and_scale
from batchformer.kernels.small_dropout import keep_at, keep_tile

LOG2_E = 1.4426950408889634


class Tile(NamedTuple):
    """Rows (or keys) of a program, rows that it reads at a time, warps and pipeline stages."""

    own: int
    stream: int
    warps: int
    stages: int


#: By the bytes of a number.
FORWARD = {2: Tile(16, 128, 4, 2), 4: Tile(16, 32, 4, 1)}
BACKWARD = {2: Tile(16, 128, 4, 2), 4: Tile(16, 32, 4, 1)}


@triton.jit
def _places(plane, row, n, C: tl.constexpr, D: tl.constexpr):
    """Where a head's channels lie in ``(L N, C)``, and its numbers in ``(L N, heads)``."""
    HEADS: tl.constexpr = C // D
    line = (plane // HEADS).to(tl.int64) * n + row
    channel = plane % HEADS * D + tl.arange(0, D)
    return line[:, None] * C + channel[None, :], line * HEADS + plane % HEADS


@triton.jit(do_not_specialize=["n", "blocks"])
def _forward(
    qkv, out, log_sum, seeds, n, blocks, plane_stride, threshold, scale, factor,
    DROPOUT: tl.constexpr, SELF: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0) // blocks
    row = tl.program_id(0) % blocks * OWN + tl.arange(0, OWN)
    here, number = _places(plane, row, n, C, D)
    inside = (row < n)[:, None]
    plane_stride = tl.cast(plane_stride, tl.int64)
    keys, values = qkv + plane_stride, qkv + 2 * plane_stride
    seed = tl.load(seeds)
    kind = out.dtype.element_ty
    if SELF:
        # The only weight of a row is 1. It is dropped if attention to the batch would drop it.
        mixed = tl.load(values + here, mask=inside, other=0.0).to(tl.float32)
        if DROPOUT:
            kept = keep_at(seed, plane, row, row, threshold)
            mixed = tl.where(kept[:, None], mixed * scale, 0.0)
    else:
        q = tl.load(qkv + here, mask=inside, other=0.0)
        largest = tl.full((OWN,), -float("inf"), tl.float32)
        total = tl.zeros((OWN,), tl.float32)
        mixed = tl.zeros((OWN, D), tl.float32)
        for first in range(0, n, STREAM):
            column = first + tl.arange(0, STREAM)
            there, _ = _places(plane, column, n, C, D)
            k = tl.load(keys + there, mask=(column < n)[:, None], other=0.0)
            v = tl.load(values + there, mask=(column < n)[:, None], other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
            s = tl.where((column < n)[None, :], s, -float("inf"))
            above = tl.maximum(largest, tl.max(s, 1))
            p = tl.exp2(s - above[:, None])
            shrink = tl.exp2(largest - above)
            total = total * shrink + tl.sum(p, 1)
            if DROPOUT:
                p = tl.where(keep_tile(seed, plane, row, first, threshold, OWN, STREAM), p, 0.0)
            mixed *= shrink[:, None]
            mixed = tl.dot(p.to(kind), v, mixed, input_precision="ieee")
            largest = above
        mixed = mixed / total[:, None]
        if DROPOUT:
            mixed *= scale
        tl.store(log_sum + number, largest + tl.log2(total), mask=row < n)
    tl.store(out + here, mixed.to(kind), mask=inside)


@triton.jit
def _tile_gradients(
    q, k, v, g, log_total, delta, row, first, n, seed, plane, threshold, scale, factor,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Weights after dropout, and the gradient of the scores, of a tile ``(ROWS, COLUMNS)``."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    # Beyond the last column, the power of a zero score could be infinite.
    inside = (first + tl.arange(0, COLUMNS) < n)[None, :]
    p = tl.exp2(tl.where(inside, s, -float("inf")) - log_total[:, None])
    dp = tl.dot(g, tl.trans(v), input_precision="ieee")
    after = p
    if DROPOUT:
        kept = keep_tile(seed, plane, row, first, threshold, ROWS, COLUMNS)
        dp = tl.where(kept, dp * scale, 0.0)
        after = tl.where(kept, p * scale, 0.0)
    ds = p * (dp - delta[:, None])
    return after.to(q.dtype), ds.to(q.dtype)


@triton.jit(do_not_specialize=["n", "blocks"])
def _backward(
    qkv, gradient, log_sum, delta, into, seeds, n, blocks, plane_stride,
    threshold, scale, factor, temperature,
    DROPOUT: tl.constexpr, SELF: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Half of the programs own queries, half own keys and values: no sum crosses programs."""
    of_queries = tl.program_id(0) % 2 == 0
    plane = tl.program_id(0) // 2 // blocks
    own = tl.program_id(0) // 2 % blocks * OWN + tl.arange(0, OWN)
    here, number = _places(plane, own, n, C, D)
    inside = (own < n)[:, None]
    plane_stride = tl.cast(plane_stride, tl.int64)
    keys, values = qkv + plane_stride, qkv + 2 * plane_stride
    seed = tl.load(seeds)
    kind = into.dtype.element_ty
    if SELF:
        if of_queries:
            tl.store(into + here, tl.zeros((OWN, D), kind), mask=inside)
        else:
            dv = tl.load(gradient + here, mask=inside, other=0.0).to(tl.float32)
            if DROPOUT:
                kept = keep_at(seed, plane, own, own, threshold)
                dv = tl.where(kept[:, None], dv * scale, 0.0)
            tl.store(into + plane_stride + here, tl.zeros((OWN, D), kind), mask=inside)
            tl.store(into + 2 * plane_stride + here, dv.to(kind), mask=inside)
    elif of_queries:
        q = tl.load(qkv + here, mask=inside, other=0.0)
        g = tl.load(gradient + here, mask=inside, other=0.0)
        log_total = tl.load(log_sum + number, mask=own < n, other=0.0)
        d = tl.load(delta + number, mask=own < n, other=0.0)
        dq = tl.zeros((OWN, D), tl.float32)
        for first in range(0, n, STREAM):
            column = first + tl.arange(0, STREAM)
            there, _ = _places(plane, column, n, C, D)
            k = tl.load(keys + there, mask=(column < n)[:, None], other=0.0)
            v = tl.load(values + there, mask=(column < n)[:, None], other=0.0)
            _, ds = _tile_gradients(
                q, k, v, g, log_total, d, own, first, n, seed, plane, threshold, scale, factor,
                DROPOUT, OWN, STREAM,
            )  # fmt: skip
            dq = tl.dot(ds, k, dq, input_precision="ieee")
        tl.store(into + here, (dq * temperature).to(kind), mask=inside)
    else:
        k = tl.load(keys + here, mask=inside, other=0.0)
        v = tl.load(values + here, mask=inside, other=0.0)
        dk = tl.zeros((OWN, D), tl.float32)
        dv = tl.zeros((OWN, D), tl.float32)
        first = tl.program_id(0) // 2 % blocks * OWN
        for start in range(0, n, STREAM):
            row = start + tl.arange(0, STREAM)
            there, numbers = _places(plane, row, n, C, D)
            # Beyond the last row all is zero, so such a row adds nothing to the sums.
            q = tl.load(qkv + there, mask=(row < n)[:, None], other=0.0)
            g = tl.load(gradient + there, mask=(row < n)[:, None], other=0.0)
            log_total = tl.load(log_sum + numbers, mask=row < n, other=0.0)
            d = tl.load(delta + numbers, mask=row < n, other=0.0)
            after, ds = _tile_gradients(
                q, k, v, g, log_total, d, row, first, n, seed, plane, threshold, scale, factor,
                DROPOUT, STREAM, OWN,
            )  # fmt: skip
            dv = tl.dot(tl.trans(after), g, dv, input_precision="ieee")
            dk = tl.dot(tl.trans(ds), q, dk, input_precision="ieee")
        tl.store(into + plane_stride + here, (dk * temperature).to(kind), mask=inside)
        tl.store(into + 2 * plane_stride + here, dv.to(kind), mask=inside)


class Attention(NamedTuple):
    """What both directions share: shapes, dropout, and the control in which none sees another."""

    length: int
    n: int
    channels: int
    heads: int
    dropout: float
    attend_self: bool

    @property
    def width(self) -> int:
        """Channels of a head D."""
        return self.channels // self.heads

    def blocks(self, tile: Tile) -> int:
        """Programs that own the rows of one head at one position."""
        return -(-self.n // tile.own)


def attend(a: Attention, qkv: Tensor, out: Tensor, seeds: Tensor) -> Tensor:
    """Fill ``out`` ``(L N, C)``; returns log2 of the sums ``(L N, heads)`` of the powers of two.

    Args:
        qkv: ``(3, L N, C)``, in the type of ``out``.
        seeds: int64 on the device; the first is used.
    """
    log_sum = torch.empty(a.length * a.n, a.heads, dtype=torch.float32, device=qkv.device)
    tile = FORWARD[qkv.element_size()]
    threshold, scale = threshold_and_scale(a.dropout)
    blocks = a.blocks(tile)
    _forward[(blocks * a.length * a.heads,)](
        qkv, out, log_sum, seeds, a.n, blocks, qkv.stride(0), threshold, scale,
        LOG2_E * a.width**-0.5,
        DROPOUT=threshold > 0, SELF=a.attend_self, C=a.channels, D=a.width,
        OWN=tile.own, STREAM=tile.stream, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return log_sum


def attend_backward(
    a: Attention,
    qkv: Tensor,
    gradient: Tensor,
    log_sum: Tensor,
    delta: Tensor,
    into: Tensor,
    seeds: Tensor,
) -> None:
    """Fill ``into`` ``(3, L N, C)`` with the gradients of queries, keys and values.

    Args:
        gradient: of what :func:`attend` filled, ``(L N, C)``.
        delta: ``(L N, heads)``: each row's product with its gradient, summed over the head.
    """
    tile = BACKWARD[qkv.element_size()]
    threshold, scale = threshold_and_scale(a.dropout)
    blocks = a.blocks(tile)
    _backward[(2 * blocks * a.length * a.heads,)](
        qkv, gradient, log_sum, delta, into, seeds, a.n, blocks, qkv.stride(0),
        threshold, scale, LOG2_E * a.width**-0.5, a.width**-0.5,
        DROPOUT=threshold > 0, SELF=a.attend_self, C=a.channels, D=a.width,
        OWN=tile.own, STREAM=tile.stream, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
