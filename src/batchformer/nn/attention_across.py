"""Attention of this rank's samples over the samples of all ranks."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.nn.attention import (
    BLOCK_BUDGET,
    Attend,
    blockwise_attention,
    choose_path,
    inspectable_attention,
)
from batchformer.nn.exchange import gather_rows
from batchformer.nn.keyed_dropout import ON_WEIGHTS, KeyedDropout
from batchformer.nn.meeting import AllRows


def attention_across(
    qkv: Tensor,
    heads: int,
    rows: AllRows,
    dropout: KeyedDropout,
    *,
    attend: Attend = "batch",
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Exact attention of the N samples here over the M of all ranks.

    Only keys and values travel: 2 C numbers a row and position, from every rank to every other,
    and as many gradients back. With ``attend="self"`` nothing does.

    Args:
        qkv: queries, keys and values side by side, ``(L, N, 3 C)``.
        heads: attention heads; must divide C.
        rows: what :func:`~batchformer.nn.meeting.meet` gave.
        dropout: of the attention weights.
        attend: ``"batch"``: every sample sees those of all ranks; ``"self"``: only itself.
        return_weights: also return the weights.

    Returns:
        ``(L, N, C)``, and the weights ``(L, heads, N, M)`` or None.
    """
    length, n, channels = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    width = channels // heads
    queries, others = torch.split(qkv, [channels, 2 * channels], dim=-1)
    first_column = rows.own.start
    if attend == "batch":
        others = others.transpose(0, 1).contiguous()
        others = gather_rows(others, rows.counts, rows.group).transpose(0, 1)
        first_column = 0
    q = queries.reshape(length, n, heads, width).transpose(1, 2)
    k, v = others.reshape(*others.shape[:2], 2, heads, width).permute(2, 0, 3, 1, 4)
    drop = partial(dropout, place=ON_WEIGHTS, first_column=first_column)
    if return_weights:
        mixed, weights = inspectable_attention(q, k, v, attend=attend, drop=drop)
        after = rows.total - first_column - weights.shape[-1]
        weights = F.pad(weights, (first_column, after))
        return mixed.transpose(1, 2).reshape(length, n, channels), weights
    stored, probability = 4 * length * heads * n * k.shape[-2], dropout.probability
    path = choose_path(
        length,
        heads,
        n,
        width,
        device=qkv.device,
        dtype=qkv.dtype,
        dropout=probability,
        attend=attend,
        keys=k.shape[-2],
    )
    if probability:  # the numbers that decide are wider than the weights, and no kernel draws them
        path = "explicit" if stored <= BLOCK_BUDGET else "blockwise"
    if path == "fused":
        mixed = F.scaled_dot_product_attention(q, k, v)
    elif path == "blockwise":
        mixed = blockwise_attention(q, k, v, attend=attend, drop=drop)
    else:
        mixed = inspectable_attention(q, k, v, attend=attend, drop=drop)[0]
    return mixed.transpose(1, 2).reshape(length, n, channels), None
