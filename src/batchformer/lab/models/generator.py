"""The networks of CE-GZSL: a conditional GAN of features, an embedding and a comparator."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from batchformer.kernels.available import unsupported_reason

#: Standard deviation of initial weights; biases start at 0.
DEVIATION = 0.02
#: Slope of the leaky ReLUs below zero.
SLOPE = 0.2
#: Hidden activations of sample-class pairs that exist at a time: 64 MiB of float32. A step holds
#: at most two such blocks, and one of booleans.
ACTIVATIONS_AT_ONCE = 2**24

M = TypeVar("M", bound=nn.Module)


def with_small_weights(module: M) -> M:
    """Draw the weights of every linear layer from N(0, 0.02^2) and set its biases to 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=DEVIATION)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class Generator(nn.Module):
    """Noise and attributes to features, through one hidden layer."""

    def __init__(self, attributes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(noise + attributes, hidden)
        self.output = nn.Linear(hidden, features)
        with_small_weights(self)

    def forward(self, noise: Tensor, attributes: Tensor) -> Tensor:
        """(N, Z) and (N, A) to non-negative features (N, D)."""
        hidden = F.leaky_relu(self.hidden(torch.cat((noise, attributes), dim=1)), SLOPE)
        return F.relu(self.output(hidden))


class Critic(nn.Module):
    """Scores, unbounded, of how real features are, given the attributes of their class."""

    def __init__(self, features: int, attributes: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features + attributes, hidden)
        self.output = nn.Linear(hidden, 1)
        with_small_weights(self)

    def forward(self, features: Tensor, attributes: Tensor) -> Tensor:
        """(N, D) and (N, A) to scores (N,)."""
        hidden = F.leaky_relu(self.hidden(torch.cat((features, attributes), dim=1)), SLOPE)
        scores: Tensor = self.output(hidden).squeeze(1)
        return scores


class Embedding(nn.Module):
    """Features to an embedding h, and h to a direction z in which samples are contrasted."""

    def __init__(self, features: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, dim)
        with_small_weights(self)

    def forward(self, features: Tensor) -> Tensor:
        """(N, D) to non-negative h (N, H)."""
        return F.relu(self.hidden(features))

    def direction(self, h: Tensor) -> Tensor:
        """h (N, H) to z (N, Z), of length one."""
        return F.normalize(self.output(h), dim=1)


class Comparator(nn.Module):
    """One hidden layer on [h, attributes], for every sample with every class.

    The hidden layer is split into a part for h and one for the attributes, whose results are added.
    This equals one layer on their concatenation, for N + K rows instead of N * K.
    """

    def __init__(self, embedding: int, attributes: int, hidden: int) -> None:
        super().__init__()
        self.of_embedding = nn.Linear(embedding, hidden)
        self.of_attributes = nn.Linear(attributes, hidden, bias=False)
        self.output = nn.Linear(hidden, 1)
        with_small_weights(self)

    def forward(self, h: Tensor, attributes: Tensor) -> Tensor:
        """Scores (N, K) of embeddings (N, H) with attributes (K, A)."""
        weight = self.output.weight.squeeze(0)
        scores = pairwise_scores(self.of_embedding(h), self.of_attributes(attributes), weight)
        return scores + self.output.bias


def pairwise_scores(
    samples: Tensor, classes: Tensor, weight: Tensor, at_once: int = ACTIVATIONS_AT_ONCE
) -> Tensor:
    """``sum_w weight_w leaky(samples_nw + classes_kw)`` (N, K), with bounded memory.

    The activations of samples (N, W) with classes (K, W), 2.3 GiB for 2,048 samples and 150
    classes, are computed for a few samples at a time, forward and again backward, and not kept in
    between: at most `at_once` of them exist, but at least those of one sample. With our kernels
    they are never stored. Nothing is read back from the device. Computed in float32 or wider, also
    under autocast.
    """
    dtype = torch.promote_types(torch.promote_types(samples.dtype, weight.dtype), torch.float32)
    with torch.autocast(samples.device.type, enabled=False):
        scores: Tensor = _Pairwise.apply(
            samples.to(dtype), classes.to(dtype), weight.to(dtype), at_once
        )
    return scores


class _Pairwise(torch.autograd.Function):
    """See :func:`pairwise_scores`."""

    @staticmethod
    def forward(ctx: Any, samples: Tensor, classes: Tensor, weight: Tensor, at_once: int) -> Tensor:
        ctx.save_for_backward(samples, classes, weight)
        ctx.rows = max(1, at_once // classes.numel())
        ctx.kernels = samples.dtype == torch.float32 and unsupported_reason(samples) is None
        if ctx.kernels:
            from batchformer.lab.models.kernels.pairwise import scores

            return scores(samples, classes, weight, SLOPE)
        parts = [
            F.leaky_relu_(part.unsqueeze(1) + classes, SLOPE) @ weight
            for part in torch.split(samples, ctx.rows)
        ]
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        samples, classes, weight = ctx.saved_tensors
        # leaky(t) = s t, with slope s = 1 above zero and SLOPE elsewhere. Sums of gradient times s,
        # over classes and over samples, give all three derivatives.
        over_classes = SLOPE * gradient.sum(1, keepdim=True)
        over_samples = SLOPE * gradient.sum(0).unsqueeze(1)
        if ctx.kernels:
            from batchformer.lab.models.kernels.pairwise import sums_above_zero

            of_samples = sums_above_zero(samples, classes, gradient)
            of_classes = sums_above_zero(classes, samples, gradient.T)
        else:
            of_samples, of_classes = _sums_above_zero(samples, classes, gradient, ctx.rows)
        by_sample = over_classes + (1 - SLOPE) * of_samples  # (N, W)
        by_class = over_samples + (1 - SLOPE) * of_classes  # (K, W)
        of_weight = (samples * by_sample).sum(0) + (classes * by_class).sum(0)
        return by_sample * weight, by_class * weight, of_weight, None


def _sums_above_zero(
    samples: Tensor, classes: Tensor, gradient: Tensor, rows: int
) -> tuple[Tensor, Tensor]:
    """Sums of `gradient` (N, K) over pairs above zero: over classes (N, W), over samples (K, W)."""
    of_samples, of_classes = [], torch.zeros_like(classes)
    for part, cut in zip(torch.split(samples, rows), torch.split(gradient, rows), strict=True):
        above = (part.unsqueeze(1) + classes > 0).to(samples.dtype)  # (n, K, W)
        of_samples.append(torch.bmm(cut.unsqueeze(1), above).squeeze(1))
        of_classes += torch.einsum("nk,nkw->kw", cut, above)
    return torch.cat(of_samples), of_classes
