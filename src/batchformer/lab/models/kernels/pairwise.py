"""A hidden layer over all pairs of two sets of rows, without its activations in memory.

For rows a (N, W) and b (K, W) the activations a_n + b_k are N K W numbers; here they exist only in
registers. Sums have a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Rows of either set, and channels, of one tile of scores.
ROWS, CHANNELS = 16, 16
#: Rows and channels of a tile of slopes, and rows of the other set that are read at a time.
SLOPE_ROWS, SLOPE_CHANNELS, AT_ONCE = 16, 128, 4
#: Programs to aim at: with fewer, sums are split into parts that are added afterwards.
PROGRAMS = 1024


@triton.jit
def _scores(
    a, b, weight, out, n, k, channels, slope,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, ROWS, CHANNELS), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        inside = channel < channels
        of_row = row.to(tl.int64)[:, None] * channels + channel[None, :]
        of_column = column.to(tl.int64)[:, None] * channels + channel[None, :]
        x = tl.load(a + of_row, mask=(row < n)[:, None] & inside[None, :], other=0.0)
        y = tl.load(b + of_column, mask=(column < k)[:, None] & inside[None, :], other=0.0)
        v = tl.load(weight + channel, mask=inside, other=0.0)
        t = x[:, None, :] + y[None, :, :]
        total += tl.where(t > 0, t, t * slope) * v[None, None, :]
    here = row.to(tl.int64)[:, None] * k + column[None, :]
    tl.store(out + here, tl.sum(total, 2), mask=(row < n)[:, None] & (column < k)[None, :])


@triton.jit
def _slopes(
    a, b, gradient, out, n, k, channels, stride_n, stride_k, part,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    here = row.to(tl.int64)[:, None] * channels + channel[None, :]
    whole = (row < n)[:, None] & inside[None, :]
    x = tl.load(a + here, mask=whole, other=0.0)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    first = tl.program_id(2) * part
    for start in range(first, first + part, AT_ONCE):
        for step in tl.static_range(AT_ONCE):
            # Rows past the end are read as the last row, with a gradient of zero.
            other = start + step + tl.zeros((1,), tl.int64)
            last = tl.minimum(other, k - 1)
            y = tl.load(b + last * channels + channel, mask=inside, other=0.0)
            place = row.to(tl.int64) * stride_n + last * stride_k
            g = tl.load(gradient + place, mask=(row < n) & (other < k), other=0.0)
            total += tl.where(x + y[None, :] > 0, g[:, None], 0.0)
    tl.store(out + tl.program_id(2).to(tl.int64) * n * channels + here, total, mask=whole)


def scores(a: Tensor, b: Tensor, weight: Tensor, slope: float) -> Tensor:
    """``sum_w weight_w leaky(a_nw + b_kw)`` (N, K) of a (N, W) and b (K, W), in float32."""
    a, b, weight = a.contiguous(), b.contiguous(), weight.contiguous()
    (n, channels), k = a.shape, len(b)
    out = a.new_empty(n, k)
    grid = (triton.cdiv(n, ROWS), triton.cdiv(k, ROWS))
    with torch.cuda.device_of(a):
        _scores[grid](
            a, b, weight, out, n, k, channels, slope,
            ROWS=ROWS, CHANNELS=CHANNELS, num_warps=4,
        )  # fmt: skip
    return out


def sums_above_zero(a: Tensor, b: Tensor, gradient: Tensor) -> Tensor:
    """``sum_k gradient_nk [a_nw + b_kw > 0]`` (N, W) of a (N, W) and b (K, W), in float32.

    The gradient (N, K) has any layout; for the other set pass its transpose.
    """
    a, b = a.contiguous(), b.contiguous()
    (n, channels), k = a.shape, len(b)
    rows, columns = triton.cdiv(n, SLOPE_ROWS), triton.cdiv(channels, SLOPE_CHANNELS)
    parts = max(1, min(PROGRAMS // (rows * columns), triton.cdiv(k, AT_ONCE)))
    part = triton.cdiv(triton.cdiv(k, parts), AT_ONCE) * AT_ONCE
    parts = triton.cdiv(k, part)
    out = a.new_empty(parts, n, channels)
    with torch.cuda.device_of(a):
        _slopes[(rows, columns, parts)](
            a, b, gradient, out, n, k, channels, gradient.stride(0), gradient.stride(1), part,
            ROWS=SLOPE_ROWS, CHANNELS=SLOPE_CHANNELS, AT_ONCE=AT_ONCE, num_warps=4,
        )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)
