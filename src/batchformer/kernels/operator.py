"""Attention over samples as an operator of torch, which ``torch.compile`` keeps whole.

A compiler cannot look into our kernels. It needs the shapes of their results, and the operator of
the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from batchformer.kernels.attention import attend, attend_backward, block_rows, empty_scores

Results = tuple[Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op(
    "batchformer::sample_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor seeds, int heads, float dropout) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def sample_attention(qkv: Tensor, seeds: Tensor, heads: int, dropout: float) -> Results:
    """What :class:`~batchformer.kernels.attention.SampleAttention` computes.

    The mixed values ``(N, C)`` and what the backward pass needs: the sums ``(heads, N)``, and the
    weights before and after dropout, each empty if it is not kept.
    """
    out, log_sum, *kept = attend(qkv.contiguous(), heads, dropout, seeds)
    nothing = (qkv.new_empty(0) for _ in range(2 - len(kept)))
    scores, weights = (*kept, *nothing)
    return out, log_sum, scores, weights


@sample_attention.register_fake
def _(qkv: Tensor, seeds: Tensor, heads: int, dropout: float) -> Results:
    n, channels = qkv.shape[0], qkv.shape[1] // 3
    out = qkv.new_empty(n, channels)
    log_sum = qkv.new_empty(heads, n, dtype=torch.float32)
    keep = block_rows(n, heads, qkv.element_size(), dropout) == n
    scores = empty_scores(heads, n, n, qkv) if keep else qkv.new_empty(0)
    weights = empty_scores(heads, n, n, qkv) if keep and dropout else qkv.new_empty(0)
    return out, log_sum, scores, weights


@torch.library.custom_op(
    "batchformer::sample_attention_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor qkv, Tensor out, Tensor log_sum, Tensor seeds, "
    "Tensor scores, Tensor weights, int heads, float dropout) -> Tensor",
)
def sample_attention_backward(
    gradient: Tensor,
    qkv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    seeds: Tensor,
    scores: Tensor,
    weights: Tensor,
    heads: int,
    dropout: float,
) -> Tensor:
    """The gradient of ``qkv`` ``(N, 3 C)``."""
    kept = [tensor for tensor in (scores, weights) if tensor.numel()]
    given = (qkv.contiguous(), out, log_sum, seeds)
    return attend_backward(gradient, *given, kept, heads, dropout)


@sample_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    qkv, seeds, ctx.heads, ctx.dropout = inputs
    out, log_sum, scores, weights = output
    ctx.set_materialize_grads(False)  # zero gradients of the weights would be as large as these
    ctx.save_for_backward(qkv, out, log_sum, seeds, scores, weights)


def _backward(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    into = sample_attention_backward(gradient, *ctx.saved_tensors, ctx.heads, ctx.dropout)
    return into, None, None, None


sample_attention.register_autograd(_backward, setup_context=_save)
