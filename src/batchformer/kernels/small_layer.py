"""A whole encoder layer for 16 to 64 channels in about seven launches, forward and backward.

With so few channels and some hundred samples, the time of a layer is that of launching kernels. So
each launch computes everything that needs no other sample. Forward, these are the projection, the
attention, and all that follows it. Backward, these are the rows after the attention, the
attention, and the gradients of the input and of the parameters together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.available import HALF, unsupported_reason

#: Channels C of the layer and D of a head that one program can hold in registers.
CHANNELS = (16, 32, 64)
WIDTHS = (16, 32, 64)
#: Up to this many samples, launches cost more than the attention's arithmetic.
MOST_SAMPLES = 4096
#: Places of dropout: on the attention weights, after it, in the feed-forward and after it.
PLACES = 4


def small_layer_unsupported_reason(x: Tensor, heads: int) -> str | None:
    """Why :class:`SmallLayer` does not support x ``(L, N, C)``, or None.

    >>> small_layer_unsupported_reason(torch.zeros(1, 8, 64), heads=4)
    'the tensor is not on a CUDA device'
    """
    return unsupported_reason(x) or shape_unsupported_reason(x, heads)


def shape_unsupported_reason(x: Tensor, heads: int) -> str | None:
    """The part of the answer that depends on shape and type alone.

    >>> shape_unsupported_reason(torch.zeros(1, 8, 48), heads=1)
    '48 channels are none of 16, 32, 64'
    >>> shape_unsupported_reason(torch.zeros(1, 8, 64), heads=8)
    'heads of 8 channels are none of 16, 32, 64'
    """
    if x.dim() != 3 or x.numel() == 0:
        return f"the input {tuple(x.shape)} is not (L, N, C) with at least one sample"
    _, n, channels = x.shape
    if channels not in CHANNELS:
        return f"{channels} channels are none of {', '.join(map(str, CHANNELS))}"
    if heads < 1 or channels % heads:
        return f"{heads} heads do not divide {channels} channels"
    if channels // heads not in WIDTHS:
        return f"heads of {channels // heads} channels are none of {', '.join(map(str, WIDTHS))}"
    if n > MOST_SAMPLES:
        return f"{n} samples are more than {MOST_SAMPLES}"
    if x.dtype not in (*HALF, torch.float32):
        return f"{x.dtype} is not bfloat16, float16 or float32"
    return None


class SmallLayer(torch.autograd.Function):
    """``nn.encoder.encoder_layer`` as one function: ``(L, N, C)`` to ``(L, N, C)`` in x's type.

    Matrix products sum in float32. The residual stream, the norms and the softmax are in float32.
    All sums have a fixed order: the same input gives the same bits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        in_proj_weight: Tensor,
        in_proj_bias: Tensor,
        out_proj_weight: Tensor,
        out_proj_bias: Tensor,
        linear1_weight: Tensor,
        linear1_bias: Tensor,
        linear2_weight: Tensor,
        linear2_bias: Tensor,
        norm1_weight: Tensor,
        norm1_bias: Tensor,
        norm2_weight: Tensor,
        norm2_bias: Tensor,
        heads: int,
        dropout: float,
        attend_self: bool,
        seeds: Tensor,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The layer.

        Args:
            x: ``(L, N, C)``: the N samples attend to one another, separately at each position.
            heads: attention heads, each of 16, 32 or 64 channels.
            dropout: probability, in four places.
            attend_self: for the control in which no sample sees another. It drops the same
                weights as attention to the batch.
            seeds: one for each of the four places, int64 on the device.
            dtype: of the operands of matrix products, e.g. autocast's; by default that of x.
        """
        from batchformer.kernels.small_attention import Attention, attend
        from batchformer.kernels.small_projection import project
        from batchformer.kernels.small_rows import Kept, Tail, after_attention

        if seeds.shape != (PLACES,) or seeds.dtype != torch.int64 or seeds.device != x.device:
            found = f"{tuple(seeds.shape)} {seeds.dtype} on {seeds.device}"
            raise ValueError(
                f"seeds must be ({PLACES},) torch.int64 on {x.device}, not {found}. Use "
                f"kernels.dropout.draw_seeds({PLACES}, x.device)."
            )
        length, n, channels = x.shape
        kind = dtype or x.dtype
        attention = Attention(length, n, channels, heads, dropout, attend_self)
        parameters = [
            p.contiguous()
            for p in (
                in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias,
                linear1_weight, linear1_bias, linear2_weight, linear2_bias,
                norm1_weight, norm1_bias, norm2_weight, norm2_bias,
            )
        ]  # fmt: skip
        rows = x.contiguous().view(-1, channels)
        with torch.cuda.device_of(x):
            kept = Kept(
                torch.empty(4, *rows.shape, dtype=kind, device=x.device),
                torch.empty(2, *rows.shape, dtype=torch.float32, device=x.device),
                torch.empty(2, len(rows), dtype=torch.float32, device=x.device),
            )
            qkv = project(rows, parameters[0], parameters[1], kept.inputs)
            log_sum = attend(attention, qkv, kept.inputs[1], seeds)
            out = after_attention(rows, Tail(*parameters[2:]), kept, dropout, seeds)
        ctx.save_for_backward(qkv, log_sum, *kept, seeds, *parameters)
        ctx.attention, ctx.dtype = attention, x.dtype
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from batchformer.kernels.small_attention import attend_backward
        from batchformer.kernels.small_gradients import finish
        from batchformer.kernels.small_rows import Kept, Tail, after_attention_backward

        qkv, log_sum, inputs, normal, inverse, seeds, *parameters = ctx.saved_tensors
        kept, a = Kept(inputs, normal, inverse), ctx.attention
        shape = dout.shape
        dout = dout.contiguous().view(-1, a.channels)
        types = [p.dtype for p in parameters]
        common = types[0] if len(set(types)) == 1 else torch.float32
        with torch.cuda.device_of(dout):
            g = after_attention_backward(
                dout, Tail(*parameters[2:]), kept, a.heads, a.dropout, seeds
            )
            attend_backward(a, qkv, g.mixed, log_sum, g.delta, g.gradients, seeds)
            dx, found = finish(
                g,
                inputs,
                parameters[0],
                ctx.dtype,
                common,
                of_input=ctx.needs_input_grad[0],
                of_parameters=any(ctx.needs_input_grad[1:13]),
            )
        wanted = [
            p.to(t) if needed and p is not None else None
            for p, t, needed in zip(found, types, ctx.needs_input_grad[1:13], strict=True)
        ]
        return (None if dx is None else dx.view(shape), *wanted, None, None, None, None, None)
