"""The parts of a trained method to look at: features, encoder over samples, classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.nn.attention import Attend
from batchformer.nn.encoder import EncoderWeights, batch_former, encoder_layer
from batchformer.nn.module import BatchFormer


@dataclass(frozen=True, eq=False)
class Relations:
    """The parts of a trained method before and after its encoder over samples."""

    # Holds all of the parts; it is put into eval while it is looked at, and put back
    module: nn.Module
    # N samples, such as images (N, ...), to pooled features (N, C), or (N, E, C) of E experts
    features: Callable[[Any], Tensor]
    classify: Callable[[Tensor], Tensor]  # features to logits (N, K)
    # Logits (N, K) and labels (N,) to a scalar, the mean over rows
    loss: Callable[[Tensor, Tensor], Tensor]
    encoder: BatchFormer | None = None  # None for a baseline
    mixed_only: bool = False  # whether the classifier was trained on mixed features alone
    # (S, ...) further rows that samples attend to in every batch, such as means of classes; None if
    # samples attend only to samples
    context: Tensor | None = None

    def mix(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed features (N, ...), and who attends to whom, (H, N, N).

        There is no dropout, whatever the mode. Attention is averaged over layers, and over
        positions such as experts. Its rows sum to 1 minus the attention to rows of the context.
        """
        encoder, samples = self._encoder(), len(features)
        channels = self._channels(features.ndim)
        x = self._with_context(features, axis=0).movedim(channels, -1)
        mixed, weights = batch_former(
            x if encoder.down is None else encoder.down(x),
            _weights(encoder),
            heads=encoder.heads,
            attend=encoder.attend,
            batch_axis=0,
            channel_axis=-1,
            return_weights=True,
        )
        mixed = mixed if encoder.up is None else x + encoder.up(mixed)
        return mixed[:samples].movedim(-1, channels), weights.mean((0, 1))[:, :samples, :samples]

    def mix_rows(self, copies: Tensor, rows: Tensor) -> Tensor:
        """Mixed features (B, ...) of one sample, ``rows[b]``, of each of B batches (B, N, ...)."""
        encoder = self._encoder()
        copies = self._with_context(copies, axis=1)
        channels = self._channels(copies.ndim - 1) + 1
        moved = copies.movedim((1, channels), (-2, -1))
        given = moved.reshape(-1, *moved.shape[-2:])
        x = given if encoder.down is None else encoder.down(given)
        *before, last = _weights(encoder)
        for layer in before:
            x, _ = encoder_layer(x, layer, heads=encoder.heads, attend=encoder.attend)
        each = rows.repeat_interleave(len(x) // len(copies))
        mixed = one_row(x, each, last, heads=encoder.heads, attend=encoder.attend)
        if encoder.up is not None:
            mixed = given[torch.arange(len(given), device=given.device), each] + encoder.up(mixed)
        # The axis of the samples is gone.
        return mixed.view(*moved.shape[:-2], -1).movedim(-1, channels - 1)

    def joint_logits(self, mixed: Tensor, plain: Tensor) -> Tensor:
        """Logits (N, K) of mixed and plain features (N, ...) of the same samples.

        They are the mean over both streams, or those of the mixed stream where it is the only one.
        """
        logits = self.classify(mixed)
        return logits if self.mixed_only else (logits + self.classify(plain)) / 2

    def _with_context(self, x: Tensor, axis: int) -> Tensor:
        """Append the context rows to the samples, along this axis."""
        if self.context is None:
            return x
        rows = self.context.to(x.dtype).expand(*x.shape[:axis], *self.context.shape)
        return torch.cat((x, rows), dim=axis)

    def _encoder(self) -> BatchFormer:
        if self.encoder is None:
            raise ValueError("a baseline mixes no samples: there is no encoder to look at")
        return self.encoder

    def _channels(self, axes: int) -> int:
        """The axis of the channels in features (N, ...), whatever axis the encoder has N on."""
        encoder = self._encoder()
        given = encoder.channel_axis
        # The encoder's own default: the last axis, but the second for images.
        given = (1 if axes > 3 else -1) if given is None else given
        order = list(range(axes))
        order.insert(0, order.pop(encoder.batch_axis))
        return order.index(given % axes)


def one_row(x: Tensor, rows: Tensor, w: EncoderWeights, *, heads: int, attend: Attend) -> Tensor:
    """Row ``rows[p]`` of the output of a layer for batch p, without dropout.

    Only one row of the last layer is used, so the other samples are keys and values only.
    ``x`` is (P, N, C), ``rows`` (P,), and the result (P, C).
    """
    batches, samples, channels = x.shape
    each = torch.arange(batches, device=x.device)
    own = x[each, rows]
    query = F.linear(own, w.in_proj_weight[:channels], w.in_proj_bias[:channels])
    query = query.view(batches, heads, 1, -1)
    others = F.linear(x, w.in_proj_weight[channels:], w.in_proj_bias[channels:])
    others = others.view(batches, samples, 2, heads, -1)
    keys, values = others.permute(2, 0, 3, 1, 4)  # (P, H, N, D) each
    scores = (query * query.shape[-1] ** -0.5) @ keys.transpose(-2, -1)
    if attend == "self":
        itself = F.one_hot(rows, samples).bool().view(batches, 1, 1, samples)
        scores = scores.masked_fill(~itself, -torch.inf)
    mixed = (scores.softmax(-1) @ values).reshape(batches, channels)
    mixed = F.linear(mixed, w.out_proj_weight, w.out_proj_bias)
    row = F.layer_norm(own + mixed, (channels,), w.norm1_weight, w.norm1_bias)
    hidden = F.linear(F.relu(F.linear(row, w.linear1_weight, w.linear1_bias)), w.linear2_weight)
    return F.layer_norm(row + hidden + w.linear2_bias, (channels,), w.norm2_weight, w.norm2_bias)


def _weights(encoder: BatchFormer) -> list[EncoderWeights]:
    return [EncoderWeights.of(layer) for layer in encoder.layers]  # type: ignore[arg-type]
