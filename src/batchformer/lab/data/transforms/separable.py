"""Weighted sums of neighbouring pixels along both axes of uint8 batches, exact on every device.

Weights are whole numbers, so that sums of products with grey levels are whole numbers below 2**24.
float32 holds all of them: a matrix product gives the same result in whatever order it adds, on
every device and for every grouping of the samples. To stay exact where matrix products of float32
are made with fewer bits (TF32, bfloat16), weights are given in two parts of at most 8 bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.transforms.contract import send

#: Weights are at most 2**15, and the weights of one target add up to at most about 2**16.
LARGEST_WEIGHT_BITS, LARGEST_SUM_BITS = 15, 16
_LOW_PART = (1 << 7) - 1
# Samples are taken in slices of at most so many pixels, which bounds the memory of a large batch
# to some hundreds of megabytes.
_PIXELS_AT_ONCE = 1 << 24


class Taps(NamedTuple):
    """Along one axis, from which pixels and with which weights each target is made, on the CPU.

    Attributes:
        start: (N, T) first source of each of T targets.
        weight: (N, T, K) int32 weights of that source and the next ones.
        bits: (N,) weights of one target stand for themselves divided by 2**bits.
    """

    start: Tensor
    weight: Tensor
    bits: Tensor


def weighted_sums(x: Tensor, across: Taps, down: Taps) -> Tensor:
    """Weighted sums along rows, rounded to grey levels, then along columns, rounded again.

    Args:
        x: (N, C, H, W) uint8.
        across: taps in 0..W - 1 for each column of the result.
        down: taps in 0..H - 1 for each row of the result.

    Returns:
        (N, C, rows of `down`, columns of `across`) uint8.
    """
    n, channels, height, width = x.shape
    out = x.new_empty(n, channels, down.start.shape[1], across.start.shape[1])
    at_once = max(1, _PIXELS_AT_ONCE // max(1, channels * height * width))
    for first in range(0, n, at_once):
        part = slice(first, first + at_once)
        rows = _along_last(x[part], Taps(*(t[part] for t in across)))
        columns = _along_last(rows.transpose(2, 3), Taps(*(t[part] for t in down)))
        out[part] = columns.transpose(2, 3)
    return out


def _along_last(x: Tensor, taps: Taps) -> Tensor:
    """(N, C, A, B) -> (N, C, A, T)."""
    n, channels, lines, length = x.shape
    matrix = _dense(taps, length, x.device)
    pixels = x.reshape(n, channels * lines, length).float()
    low = matrix & _LOW_PART
    with _without_autocast(x.device.type):
        total = torch.bmm(pixels, (matrix - low).float())
        total = torch.baddbmm(total, pixels, low.float())
    unit = send(2.0 ** -taps.bits.float(), x.device).view(-1, 1, 1)
    # Scaling by powers of two is exact; one half more makes the truncation a rounding.
    grey = total.mul_(unit).add_(0.5).clamp_(max=255).to(torch.uint8)
    return grey.view(n, channels, lines, -1)


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _dense(taps: Taps, length: int, device: torch.device) -> Tensor:
    """(N, length, T) int32: the weight of each source in each target."""
    count = taps.weight.shape[2]
    # One more tap of weight 0 serves all sources that do not meet a target.
    weight = send(F.pad(taps.weight.transpose(1, 2), (0, 0, 0, 1)), device)
    offset = torch.arange(length, device=device)[:, None] - send(taps.start, device)[:, None]
    offset = offset.where((offset >= 0) & (offset < count), count)
    return weight.gather(1, offset)
