"""Queries, keys and values of a small encoder layer, and how kernels read its rows and weights.

Rows are the L N samples of all positions. Weights are square; the in-projection has three.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.available import processors

#: Programs per multiprocessor beyond which blocks grow.
FULL = 4


class Block(NamedTuple):
    """Rows of a program, its warps, and its most rows."""

    rows: int
    warps: int
    most: int

    def fitted(self, total: int, device: torch.device) -> Block:
        """This block, with more rows if there are enough blocks to fill the device."""
        rows = self.rows
        while rows < self.most and total > rows * FULL * processors(device):
            rows *= 2
        return self._replace(rows=rows)


#: By the bytes of a number.
PROJECT = {2: Block(16, 4, 64), 4: Block(16, 4, 16)}


@triton.jit
def places(row, C: tl.constexpr):
    """Where rows lie in ``(L N, C)``."""
    return row.to(tl.int64)[:, None] * C + tl.arange(0, C)[None, :]


@triton.jit
def read_weight(pointer, kind: tl.constexpr, C: tl.constexpr):
    """A square weight ``(out, in)``, in the type of a product."""
    channel = tl.arange(0, C)
    return tl.load(pointer + channel[:, None] * C + channel[None, :]).to(kind)


@triton.jit
def read_vector(pointer, C: tl.constexpr):
    """A vector such as a bias, ``(1, C)`` float32."""
    return tl.load(pointer + tl.arange(0, C)).to(tl.float32)[None, :]


@triton.jit
def linear(x, weight, bias):
    """``x weightᵀ + bias``, summed in float32."""
    return tl.dot(x, tl.trans(weight), input_precision="ieee") + bias


@triton.jit(do_not_specialize=["rows"])
def _project(x, weight, bias, inputs, qkv, rows, stride, C: tl.constexpr, ROWS: tl.constexpr):
    part = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = places(row, C)
    inside = (row < rows)[:, None]
    kind = qkv.dtype.element_ty
    stride = tl.cast(stride, tl.int64)
    a = tl.load(x + here, mask=inside, other=0.0).to(kind)
    w = read_weight(weight + part * C * C, kind, C)
    b = read_vector(bias + part * C, C)
    if part == 0:
        tl.store(inputs + here, a, mask=inside)
    y = linear(a, w, b)
    tl.store(qkv + part * stride + here, y.to(kind), mask=inside)


def project(x: Tensor, weight: Tensor, bias: Tensor, inputs: Tensor) -> Tensor:
    """Queries, keys and values ``(3, L N, C)`` of x ``(L N, C)``; x goes into ``inputs[0]``."""
    rows, channels = x.shape
    block = PROJECT[inputs.element_size()].fitted(rows, x.device)
    qkv = torch.empty(3, rows, channels, dtype=inputs.dtype, device=x.device)
    _project[(triton.cdiv(rows, block.rows), 3)](
        x, weight, bias, inputs, qkv, rows, qkv.stride(0),
        C=channels, ROWS=block.rows, num_warps=block.warps, num_stages=1,
    )  # fmt: skip
    return qkv
