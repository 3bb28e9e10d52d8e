"""Influence by gradient: how much the loss of sample i depends on sample j of its batch.

With pooled features f and logits that are the mean of both streams, L_i is the loss of sample i
alone. Without BatchFormer dL_i / df_j is 0 for every j but i. With BatchFormer it measures how much
j takes part in learning from i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from batchformer.insight.relations import Relations
from batchformer.kernels import disabled

BLOCK = 2**22  # the most elements of an intermediate result over copies of a batch
IMAGES = 32  # images whose activations are held at a time for the backward pass


@dataclass(frozen=True, eq=False)
class BatchInfluence:
    """Who acts on whom in one batch of N."""

    absolute: Tensor  # (N, N) mean absolute value over channels of dL_i / df_j, i in the row
    length: Tensor  # (N, N) its Euclidean length
    attention: Tensor  # (H, N, N), i attends to j; rows sum to 1
    # (S, N, ...) for s = 1..S and each j, dL_i / df_j of the sample i that stands s places before
    # j in the batch, in cyclic order
    following: Tensor
    # (H, N) share of its attention that i gives to context rows; None without a context. With one,
    # `attention` covers only the samples, and its rows still sum to 1.
    to_context: Tensor | None = None


def batch_influence(
    relations: Relations, features: Tensor, labels: Tensor, steps: int = 0
) -> BatchInfluence:
    """All dL_i / df_j of a batch with plain pooled features (N, ...) and labels (N,).

    ``steps`` is S, how many gradients are kept of each sample, for :func:`on_images`.
    """
    count = len(features)
    absolute, length = features.new_zeros(count, count), features.new_zeros(count, count)
    following = features.new_zeros(steps, *features.shape)
    with torch.no_grad(), disabled():
        _, attention = relations.mix(features)
    for first, part in feature_gradients(relations, features, labels):
        rows = torch.arange(first, first + len(part), device=features.device)
        absolute[rows], length[rows] = sizes(part, 2)
        for step in range(1, steps + 1):
            after = (rows + step) % count
            following[step - 1, after] = part[rows - first, after]
    if relations.context is None:
        return BatchInfluence(absolute, length, attention, following)
    to_samples = attention.sum(-1, keepdim=True)
    return BatchInfluence(
        absolute, length, attention / to_samples, following, 1 - to_samples.squeeze(-1)
    )


def feature_gradients(
    relations: Relations, features: Tensor, labels: Tensor, block: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows: the first row i, and dL_i / df (rows, N, ...) of the block.

    The batch is copied for every row, and L_i is computed from copy i alone: copies are positions
    to the encoder, which do not attend to each other. So one backward pass gives all gradients.
    ``block`` is the number of copies at a time; by default what :data:`BLOCK` allows.
    """
    count = len(features)
    if block is None:
        rows_of_copy = count + (0 if relations.context is None else len(relations.context))
        block = max(1, BLOCK // (rows_of_copy * _numbers(relations, features)))
    for first in range(0, count, block):
        rows = torch.arange(first, min(first + block, count), device=features.device)
        with torch.enable_grad(), disabled():
            copies = features.detach().repeat(len(rows), *[1] * features.ndim)
            copies = copies.view(len(rows), *features.shape).requires_grad_()
            own = torch.arange(len(rows), device=features.device), rows
            mixed = relations.mix_rows(copies, rows)
            logits = relations.joint_logits(mixed, copies[own])
            total = losses_of_rows(relations, logits, labels[rows]).sum()
            (gradients,) = torch.autograd.grad(total, copies)
        yield first, gradients


def _numbers(relations: Relations, features: Tensor) -> int:
    """The largest size of an intermediate result for one sample of one copy."""
    own, encoder = features[0].numel(), relations.encoder
    if encoder is None or len(encoder.layers) == 1:
        return 2 * own
    # All but the last layer hold the weights of all pairs.
    return max(2 * own, encoder.heads * len(features) * own // encoder.dim)


def losses_of_rows(relations: Relations, logits: Tensor, labels: Tensor) -> Tensor:
    """Losses (N,), one row at a time: a criterion may combine the rows of a batch."""
    cuts = zip(torch.split(logits, 1), torch.split(labels, 1), strict=True)
    return torch.stack([relations.loss(row, label) for row, label in cuts])


def on_images(
    relations: Relations, x: Tensor, following: Tensor, block: int = IMAGES
) -> tuple[Tensor, Tensor]:
    """Gradients of losses on input images: dL_i / dx_j = (df_j / dx_j)^T dL_i / df_j.

    In eval, images do not change each other's features. So one backward pass gives every image the
    gradient of one other sample's loss, and S passes give it those of S other samples.

    Args:
        x: (N, ...) images, of which ``block`` are taken at a time.
        following: (S, N, ...) of :func:`batch_influence`.

    Returns:
        Mean absolute values and lengths, (S, N) each: row s, column i is the gradient of L_i on the
        image that comes s places after i.
    """
    absolute, length = (x.new_zeros(following.shape[:2]) for _ in range(2))
    for first in range(0, len(x), block):
        own = slice(first, first + block)
        with torch.enable_grad():
            images = x[own].detach().requires_grad_()
            features = relations.features(images)
            for row, wanted in enumerate(following[:, own]):
                (found,) = torch.autograd.grad(features, images, wanted, retain_graph=True)
                absolute[row, own], length[row, own] = sizes(found, 1)
    back = [(row, -(row + 1)) for row in range(len(following))]
    by_loss = [torch.stack([part[row].roll(by) for row, by in back]) for part in (absolute, length)]
    return by_loss[0], by_loss[1]


def sizes(gradients: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Mean absolute value and Euclidean length over all but the first axes.

    >>> sizes(torch.tensor([[3.0, -4.0]]), axes=1)
    (tensor([3.5000]), tensor([5.]))
    """
    flat = gradients.flatten(axes)
    return flat.abs().mean(-1), flat.norm(dim=-1)
