"""Attention over samples: softmax(q kᵀ / √D) v, where the sequence axis is the batch axis."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Literal["batch", "self"]

#: Above this many bytes of attention weights the fused kernel is used, which never stores them.
EXPLICIT_BUDGET = 256 * 2**20


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, attend: Attend = "batch"
) -> Tensor:
    """Exact attention by the path that suits the shape.

    Args:
        q, k, v: queries, keys and values, each ``(L, heads, N, D)``.
        dropout: probability of dropping an attention weight.
        attend: ``"batch"``: every sample sees every sample; ``"self"``: each sees only itself.

    Returns:
        ``(L, heads, N, D)``.
    """
    stored_bytes = 4 * math.prod(q.shape[:-1]) * k.shape[-2]
    if attend == "batch" and stored_bytes > EXPLICIT_BUDGET:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    return inspectable_attention(q, k, v, dropout=dropout, attend=attend)[0]


def inspectable_attention(
    q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, attend: Attend = "batch"
) -> tuple[Tensor, Tensor]:
    """The same attention with its weights: ``(L, heads, N, D)`` and ``(L, heads, N, N)``.

    Each row of the weights sums to one; dropout acts on the weights after they are recorded.
    """
    # Scaling q first keeps half-precision scores in range; the softmax itself is never in half.
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if attend == "self":
        # Masking, rather than skipping, draws the same dropout numbers as attention to the batch.
        others = ~torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(others, -torch.inf)
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return F.dropout(weights, dropout).to(v.dtype) @ v, weights
