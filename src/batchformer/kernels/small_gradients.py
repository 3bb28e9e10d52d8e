"""The last backward step of a small encoder layer: gradients of its input and its parameters.

One launch computes both, since neither needs the other. A weight's gradient is a product over
rows. Many rows are split into parts, which are summed in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.dropout import column_sums
from batchformer.kernels.small_projection import Block, places, read_weight
from batchformer.kernels.small_rows import RowGradients


class Share(NamedTuple):
    """How products over rows are split: rows at a time, and the fewest rows of a part."""

    stream: int
    part: int


#: By the bytes of a number. The warps of a block are those of all programs.
INPUT = {2: Block(32, 4, 64), 4: Block(16, 4, 16)}
WEIGHTS = {2: Share(128, 128), 4: Share(16, 64)}
STAGES = {2: 1, 4: 1}
#: The most parts of a product. With more rows, the parts grow.
MOST_PARTS = 64
#: Rows and columns of a tile of the norms' sums.
SUM_ROWS, SUM_COLUMNS = 128, 16
#: Products with a weight: queries, keys, values, out-projection, feed-forward twice.
PRODUCTS = tl.constexpr(6)


@triton.jit
def _weight_gradient(
    gradients, inputs, dweights, program, rows, stride, part_rows,
    C: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    which, part = program % PRODUCTS, program // PRODUCTS
    # Queries, keys and values share their input, the first of the four.
    left = gradients + which * stride
    right = inputs + tl.maximum(which - 2, 0) * stride
    dw = tl.zeros((C, C), tl.float32)
    db = tl.zeros((C,), tl.float32)
    first = part * part_rows
    for start in range(first, tl.minimum(first + part_rows, rows), STREAM):
        row = start + tl.arange(0, STREAM)
        here = places(row, C)
        inside = (row < rows)[:, None]
        g = tl.load(left + here, mask=inside, other=0.0)
        a = tl.load(right + here, mask=inside, other=0.0)
        dw = tl.dot(tl.trans(g), a, dw, input_precision="ieee")
        db += tl.sum(g.to(tl.float32), 0)
    # In the order of the layer's tensors: three weights, three biases, then pairs.
    dweights += part * (PRODUCTS * (C * C + C))
    pair = which * (C * C + C)
    weight = dweights + tl.where(which < 3, which * C * C, pair)
    bias = dweights + tl.where(which < 3, 3 * C * C + which * C, pair + C * C)
    channel = tl.arange(0, C)
    square = channel[:, None] * C + channel[None, :]
    tl.store(weight + square, dw.to(dweights.dtype.element_ty))
    tl.store(bias + channel, db.to(dweights.dtype.element_ty))


@triton.jit
def _input_gradient(
    gradients, residual, in_proj, dx, block, rows, stride, C: tl.constexpr, ROWS: tl.constexpr
):
    row = block * ROWS + tl.arange(0, ROWS)
    here = places(row, C)
    inside = (row < rows)[:, None]
    total = tl.load(residual + here, mask=inside, other=0.0)
    dq = tl.load(gradients + here, mask=inside, other=0.0)
    dk = tl.load(gradients + stride + here, mask=inside, other=0.0)
    dv = tl.load(gradients + 2 * stride + here, mask=inside, other=0.0)
    wq = read_weight(in_proj, dq.dtype, C)
    wk = read_weight(in_proj + C * C, dk.dtype, C)
    wv = read_weight(in_proj + 2 * C * C, dv.dtype, C)
    total = tl.dot(dq, wq, total, input_precision="ieee")
    total = tl.dot(dk, wk, total, input_precision="ieee")
    total = tl.dot(dv, wv, total, input_precision="ieee")
    tl.store(dx + here, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _norm_gradients(
    sums, dnorms, program, rows,
    C: tl.constexpr, SUM_ROWS: tl.constexpr, SUM_COLUMNS: tl.constexpr,
):  # fmt: skip
    column = program * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
    total = tl.zeros((SUM_ROWS, SUM_COLUMNS), tl.float32)
    for start in range(0, rows, SUM_ROWS):
        row = start + tl.arange(0, SUM_ROWS)
        here = row[:, None] * (4 * C) + column[None, :]
        total += tl.load(sums + here, mask=(row < rows)[:, None], other=0.0)
    tl.store(dnorms + column, tl.sum(total, 0).to(dnorms.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "blocks", "parts", "part_rows", "sum_rows"])
def _finish(
    gradients, inputs, residual, sums, in_proj, dx, dweights, dnorms,
    rows, stride, blocks, parts, part_rows, sum_rows,
    C: tl.constexpr, ROWS: tl.constexpr, STREAM: tl.constexpr,
    SUM_ROWS: tl.constexpr, SUM_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Programs of the weights come first, because they take longest; those of norms last."""
    program = tl.program_id(0)
    products = PRODUCTS * parts
    stride = tl.cast(stride, tl.int64)
    if program < products:
        _weight_gradient(gradients, inputs, dweights, program, rows, stride, part_rows, C, STREAM)
    elif program < products + blocks:
        block = program - products
        _input_gradient(gradients, residual, in_proj, dx, block, rows, stride, C, ROWS)
    else:
        program -= products + blocks
        _norm_gradients(sums, dnorms, program, sum_rows, C, SUM_ROWS, SUM_COLUMNS)


def finish(
    g: RowGradients,
    inputs: Tensor,
    in_proj_weight: Tensor,
    x_dtype: torch.dtype,
    parameter_dtype: torch.dtype,
    *,
    of_input: bool,
    of_parameters: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The gradients of the layer's input ``(L N, C)`` and of its twelve parameters.

    Args:
        g: results of the backward passes of the rows and of the attention.
        inputs: of the products, ``(4, L N, C)``.
        x_dtype, parameter_dtype: types of the results.
        of_input, of_parameters: which gradients to compute; the others are None.
    """
    rows, channels = g.residual.shape
    nothing: list[Tensor | None] = [None] * 12
    if not (of_input or of_parameters):
        return None, nothing
    size = inputs.element_size()
    block = INPUT[size].fitted(rows, inputs.device)
    share = WEIGHTS[size]
    part_rows = max(share.part, triton.cdiv(rows, MOST_PARTS))
    part_rows = triton.cdiv(part_rows, share.stream) * share.stream
    parts = triton.cdiv(rows, part_rows) if of_parameters else 0
    blocks = triton.cdiv(rows, block.rows) if of_input else 0
    products, square = PRODUCTS.value, channels * channels
    dx = torch.empty(g.residual.shape, dtype=x_dtype, device=inputs.device)
    kind = torch.float32 if parts > 1 else parameter_dtype
    dweights = torch.empty(parts, products * (square + channels), dtype=kind, device=inputs.device)
    dnorms = torch.empty(4, channels, dtype=parameter_dtype, device=inputs.device)
    programs = products * parts + 4 * channels // SUM_COLUMNS if of_parameters else 0
    _finish[(programs + blocks,)](
        g.gradients, inputs, g.residual, g.sums, in_proj_weight, dx, dweights, dnorms,
        rows, inputs.stride(0), blocks, parts, part_rows, len(g.sums),
        C=channels, ROWS=block.rows, STREAM=share.stream,
        SUM_ROWS=SUM_ROWS, SUM_COLUMNS=SUM_COLUMNS,
        num_warps=block.warps, num_stages=STAGES[size],
    )  # fmt: skip
    if not of_parameters:
        return dx, nothing
    weights = column_sums(dweights, parameter_dtype) if parts > 1 else dweights[0]
    in_weight, in_bias, *pairs = weights.split([3 * square, 3 * channels, *[square, channels] * 3])
    shaped = [p.view(channels, channels) if p.numel() == square else p for p in pairs]
    found = [in_weight.view(3 * channels, channels), in_bias, *shaped, *dnorms]
    return dx if of_input else None, found
