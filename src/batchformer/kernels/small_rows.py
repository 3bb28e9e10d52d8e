"""The part of a small encoder layer that follows its attention, in which rows are independent.

Rows are the L N samples of all positions. A program takes a block of them through all products,
dropouts and norms, and stores once what the backward pass needs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.dropout import threshold_and_scale
from batchformer.kernels.small_dropout import keep_tile
from batchformer.kernels.small_projection import Block, linear, places, read_vector, read_weight

EPSILON = tl.constexpr(1e-5)
#: By the bytes of a number.
FORWARD = {2: Block(16, 4, 32), 4: Block(16, 4, 16)}
BACKWARD = {2: Block(16, 4, 32), 4: Block(16, 4, 16)}


class Tail(NamedTuple):
    """The ten tensors after the attention, in the order of the layer's twelve."""

    out_proj_weight: Tensor
    out_proj_bias: Tensor
    linear1_weight: Tensor
    linear1_bias: Tensor
    linear2_weight: Tensor
    linear2_bias: Tensor
    norm1_weight: Tensor
    norm1_bias: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor


class Kept(NamedTuple):
    """What the backward pass needs of the rows.

    Args:
        inputs: of the four products ``(4, L N, C)``: in-projection, out-projection, and the two of
            the feed-forward.
        normal: normalised rows of the two norms, before their affine maps ``(2, L N, C)``, float32.
        inverse: inverse standard deviations ``(2, L N)``, float32.
    """

    inputs: Tensor
    normal: Tensor
    inverse: Tensor


@triton.jit
def _early(pointer, kind: tl.constexpr, C: tl.constexpr):
    """A weight in half precision; the address of a float32 weight, to save registers."""
    return pointer if kind == tl.float32 else read_weight(pointer, kind, C)


@triton.jit
def _late(weight, kind: tl.constexpr, C: tl.constexpr):
    """The weight that :func:`_early` read, or whose address it returned."""
    return read_weight(weight, kind, C) if kind == tl.float32 else weight


@triton.jit
def _drop(
    y, seed, row, threshold, scale,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    if DROPOUT:
        y = tl.where(keep_tile(seed, 0, row, 0, threshold, ROWS, C), y * scale, 0.0)
    return y


@triton.jit
def _normalise(z, C: tl.constexpr):
    centred = z - (tl.sum(z, 1) / C)[:, None]
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + EPSILON)
    return centred * inverse[:, None], inverse


@triton.jit
def _normalise_backward(g, normal, inverse, C: tl.constexpr):
    mean = (tl.sum(g, 1) / C)[:, None]
    along = (tl.sum(g * normal, 1) / C)[:, None]
    return (g - mean - normal * along) * inverse[:, None]


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x, inputs, normal, inverse, out, wo, bo, w1, b1, w2, b2, g1, s1, g2, s2, seeds, rows, stride,
    threshold, scale, DROPOUT: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = places(row, C)
    inside = (row < rows)[:, None]
    kind = inputs.dtype.element_ty
    stride = tl.cast(stride, tl.int64)
    # Read everything first: one wait for memory instead of one before each product.
    mixed = tl.load(inputs + stride + here, mask=inside, other=0.0)
    before = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
    seed1, seed2, seed3 = tl.load(seeds + 1), tl.load(seeds + 2), tl.load(seeds + 3)
    wo, w1, w2 = _early(wo, kind, C), _early(w1, kind, C), _early(w2, kind, C)
    bias, bias1, bias2 = read_vector(bo, C), read_vector(b1, C), read_vector(b2, C)
    gain1, shift1 = read_vector(g1, C), read_vector(s1, C)
    gain2, shift2 = read_vector(g2, C), read_vector(s2, C)

    z = linear(mixed, _late(wo, kind, C), bias)
    z = before + _drop(z, seed1, row, threshold, scale, DROPOUT, ROWS, C)
    z, deviation = _normalise(z, C)
    tl.store(normal + here, z, mask=inside)
    tl.store(inverse + row, deviation, mask=row < rows)
    y = z * gain1 + shift1
    a = y.to(kind)
    tl.store(inputs + 2 * stride + here, a, mask=inside)
    hidden = linear(a, _late(w1, kind, C), bias1)
    # Not maximum(hidden, 0), which would turn NaN into zero and hide a run that diverges.
    hidden = tl.where(hidden <= 0, 0.0, hidden)
    a = _drop(hidden, seed2, row, threshold, scale, DROPOUT, ROWS, C).to(kind)
    tl.store(inputs + 3 * stride + here, a, mask=inside)
    z = linear(a, _late(w2, kind, C), bias2)
    z = y + _drop(z, seed3, row, threshold, scale, DROPOUT, ROWS, C)
    z, deviation = _normalise(z, C)
    tl.store(normal + stride + here, z, mask=inside)
    tl.store(inverse + rows + row, deviation, mask=row < rows)
    y = z * gain2 + shift2
    tl.store(out + here, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    dout, inputs, normal, inverse, gradients, dmixed, delta, residual, sums,
    wo, w1, w2, g1, g2, seeds, rows, stride, threshold, scale,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = places(row, C)
    inside = (row < rows)[:, None]
    kind = inputs.dtype.element_ty
    stride = tl.cast(stride, tl.int64)
    sums += tl.program_id(0) * 4 * C + tl.arange(0, C)

    g = tl.load(dout + here, mask=inside, other=0.0).to(tl.float32)
    normal1 = tl.load(normal + here, mask=inside, other=0.0)
    normal2 = tl.load(normal + stride + here, mask=inside, other=0.0)
    inverse1 = tl.load(inverse + row, mask=row < rows, other=0.0)
    inverse2 = tl.load(inverse + rows + row, mask=row < rows, other=0.0)
    mixed = tl.load(inputs + stride + here, mask=inside, other=0.0)
    hidden = tl.load(inputs + 3 * stride + here, mask=inside, other=0.0)
    seed1, seed3 = tl.load(seeds + 1), tl.load(seeds + 3)
    wo, w1, w2 = _early(wo, kind, C), _early(w1, kind, C), _early(w2, kind, C)
    gain1, gain2 = read_vector(g1, C), read_vector(g2, C)

    tl.store(sums + 2 * C, tl.sum(g * normal2, 0))
    tl.store(sums + 3 * C, tl.sum(g, 0))
    dz = _normalise_backward(g * gain2, normal2, inverse2, C)
    g = _drop(dz, seed3, row, threshold, scale, DROPOUT, ROWS, C).to(kind)
    tl.store(gradients + 5 * stride + here, g, mask=inside)

    dhidden = tl.dot(g, _late(w2, kind, C), input_precision="ieee")
    # Elements that dropout or the ReLU removed are zero in the input of the product.
    g = tl.where(hidden > 0, dhidden * scale, 0.0).to(kind)
    tl.store(gradients + 4 * stride + here, g, mask=inside)

    g = dz + tl.dot(g, _late(w1, kind, C), input_precision="ieee")
    tl.store(sums, tl.sum(g * normal1, 0))
    tl.store(sums + C, tl.sum(g, 0))
    dz = _normalise_backward(g * gain1, normal1, inverse1, C)
    tl.store(residual + here, dz, mask=inside)
    g = _drop(dz, seed1, row, threshold, scale, DROPOUT, ROWS, C).to(kind)
    tl.store(gradients + 3 * stride + here, g, mask=inside)

    g = tl.dot(g, _late(wo, kind, C), input_precision="ieee").to(kind)
    tl.store(dmixed + here, g, mask=inside)
    along = tl.reshape(mixed.to(tl.float32) * g.to(tl.float32), (ROWS, HEADS, C // HEADS))
    numbers = row.to(tl.int64)[:, None] * HEADS + tl.arange(0, HEADS)[None, :]
    tl.store(delta + numbers, tl.sum(along, 2), mask=inside)


def after_attention(x: Tensor, w: Tail, kept: Kept, dropout: float, seeds: Tensor) -> Tensor:
    """The layer's output ``(L N, C)`` from the attention's, ``kept.inputs[1]``; fills ``kept``.

    Args:
        x: the layer's input ``(L N, C)``.
        seeds: of the four places, int64 on the device; the last three are used.
    """
    rows, channels = x.shape
    out = torch.empty_like(x)
    block = FORWARD[kept.inputs.element_size()].fitted(rows, x.device)
    threshold, scale = threshold_and_scale(dropout)
    _forward[(triton.cdiv(rows, block.rows),)](
        x, *kept, out, *w, seeds, rows, kept.inputs.stride(0), threshold, scale,
        DROPOUT=threshold > 0, C=channels, ROWS=block.rows, num_warps=block.warps, num_stages=1,
    )  # fmt: skip
    return out


class RowGradients(NamedTuple):
    """Results of the backward pass of the rows.

    Args:
        gradients: of the outputs of the six products ``(6, L N, C)``. The attention's backward
            pass fills those of queries, keys and values.
        mixed: of the attention's output ``(L N, C)``.
        delta: the attention's output times its gradient, summed over a head ``(L N, heads)``.
        residual: gradient of the layer's input through the residual connection, float32.
        sums: gradients of the four norm parameters, a part for each program ``(programs, 4, C)``.
    """

    gradients: Tensor
    mixed: Tensor
    delta: Tensor
    residual: Tensor
    sums: Tensor


def after_attention_backward(
    dout: Tensor, w: Tail, kept: Kept, heads: int, dropout: float, seeds: Tensor
) -> RowGradients:
    """The backward pass of :func:`after_attention`."""
    rows, channels = dout.shape
    block = BACKWARD[kept.inputs.element_size()].fitted(rows, dout.device)
    programs = triton.cdiv(rows, block.rows)
    of_operands = kept.inputs.new_empty
    of_sums = kept.normal.new_empty
    into = RowGradients(
        of_operands(6, rows, channels), of_operands(rows, channels), of_sums(rows, heads),
        of_sums(rows, channels), of_sums(programs, 4, channels),
    )  # fmt: skip
    threshold, scale = threshold_and_scale(dropout)
    _backward[(programs,)](
        dout, *kept, *into,
        w.out_proj_weight, w.linear1_weight, w.linear2_weight, w.norm1_weight, w.norm2_weight,
        seeds, rows, kept.inputs.stride(0), threshold, scale,
        DROPOUT=threshold > 0, HEADS=heads, C=channels, ROWS=block.rows,
        num_warps=block.warps, num_stages=1,
    )  # fmt: skip
    return into
