"""Dropout within a product: a function of (seed, plane, row, column) for tiles of any size.

One call of Philox serves eight elements with sixteen bits each, as in
:mod:`batchformer.kernels.dropout`. Here they are eight elements of a row: those that one thread of
a tensor core's product holds, so no element moves between threads. Column 32 i + 8 w + 2 t + h is
half h (0, 1) of word w (0 to 3) of call 4 i + t (t from 0 to 3).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.dropout import ROUNDS, threshold_and_scale


@triton.jit
def _keep(seed, plane, row, call, word, half, threshold):
    counter = call.to(tl.uint32) + row.to(tl.uint32) * 0
    none = counter * 0
    line = none + row.to(tl.uint32)
    a, b, c, d = tl.philox(seed, counter, line, none + plane, none, ROUNDS)
    bits = tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))
    bits = tl.where(half == 0, bits & 0xFFFF, bits >> 16)
    return bits.to(tl.int32) >= threshold


@triton.jit
def keep_at(seed, plane, row, column, threshold):
    """Which elements are kept, for rows and columns of the same shape."""
    call = column // 32 * 4 + column // 2 % 4
    return _keep(seed, plane, row, call, column // 8 % 4, column % 2, threshold)


@triton.jit
def keep_tile(seed, plane, row, first, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which elements ``(ROWS, COLUMNS)`` are kept.

    Args:
        row: the rows ``(ROWS,)``.
        first: the first column, a multiple of COLUMNS, which is a power of two of at least 16.
    """
    BANDS: tl.constexpr = (COLUMNS + 31) // 32
    WORDS: tl.constexpr = COLUMNS // (8 * BANDS)
    call = tl.reshape(tl.arange(0, BANDS * 4) + first // 32 * 4, (1, BANDS, 1, 4, 1))
    word = tl.reshape(tl.arange(0, WORDS), (1, 1, WORDS, 1, 1))
    if COLUMNS < 32:
        word += first % 32 // 8
    half = tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 2))
    line = tl.reshape(row, (ROWS, 1, 1, 1, 1))
    kept = _keep(seed, plane, line, call, word, half, threshold)
    return tl.reshape(kept, (ROWS, COLUMNS))


@triton.jit(do_not_specialize=["rows", "columns"])
def _masks(out, seeds, rows, columns, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    plane = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * COLUMNS
    kept = keep_tile(tl.load(seeds), plane, row, first, threshold, ROWS, COLUMNS)
    row = row[:, None]
    column = first + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    tl.store(out + (plane * rows + row) * columns + column, kept.to(tl.int8), mask=inside)


def keep_masks(seeds: Tensor, planes: int, rows: int, columns: int, dropout: float) -> Tensor:
    """The masks that the kernels draw without storing them, ``(planes, rows, columns)`` bool.

    Args:
        seeds: int64 on the device; the first is used.
        planes: one for each head at each position; one for places without heads.
    """
    out = torch.empty(planes, rows, columns, dtype=torch.int8, device=seeds.device)
    threshold = threshold_and_scale(dropout)[0]
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 64), planes)
    _masks[grid](out, seeds, rows, columns, threshold, ROWS=16, COLUMNS=64)
    return out.bool()
