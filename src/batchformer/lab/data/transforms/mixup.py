"""Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019) of a batch with its reversed order.

A batch has one of the two, with one share or one box, as in DeiT. Everything is drawn and decided
on the device and shapes are static, so that an update can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Beta


@dataclass(frozen=True)
class Mix:
    """How a batch is mixed."""

    own: Tensor  # (H, W) the share of itself that each pixel keeps; the rest is its partner's
    share: Tensor  # () the same for the targets


def blend(share: Tensor, height: int, width: int) -> Mix:
    """Mixup: every pixel keeps the same share, ()."""
    return Mix(share.expand(height, width), share)


def paste(box: Tensor) -> Mix:
    """CutMix: pixels inside the box are the partner's. The share is the area outside of it."""
    own = (~box).float()
    return Mix(own, own.mean())


def cut_box(share: Tensor, row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    """The box (H, W) of CutMix: 1 - share of the image, before it is cut at the borders."""
    side = (1 - share).sqrt()
    down = _interval(row, (height * side).floor(), height)
    across = _interval(column, (width * side).floor(), width)
    return down[:, None] & across[None, :]


def _interval(centre: Tensor, length: Tensor, size: int) -> Tensor:
    """(size,) bool: `length` positions around the centre; an odd one comes after it."""
    place = torch.arange(size, device=centre.device)
    before, after = (length / 2).floor(), (length / 2).ceil()
    return (place >= centre - before) & (place < centre + after)


def draw_mix(
    height: int,
    width: int,
    mixup: float,
    cutmix: float,
    switch: float,
    device: torch.device,
    probability: float = 1.0,
) -> Mix:
    """Draw how a batch is mixed, on the device.

    Args:
        mixup: alpha of Mixup, whose share is drawn from Beta(alpha, alpha); 0: none.
        cutmix: alpha of CutMix; 0: none.
        switch: probability of CutMix where there are both.
        probability: probability that the batch is mixed at all; otherwise it stays as it is.
    """
    if mixup <= 0 and cutmix <= 0:
        raise ValueError("there is nothing to draw: mixup or cutmix must be above 0")
    pasted = torch.rand((), device=device) < switch
    kinds = []
    if mixup > 0:
        kinds.append(blend(_share(mixup, device), height, width))
    if cutmix > 0:
        row, column = (torch.randint(side, (), device=device) for side in (height, width))
        kinds.append(paste(cut_box(_share(cutmix, device), row, column, height, width)))
    first, last = kinds[0], kinds[-1]  # the same if there is one kind
    own = torch.where(pasted, last.own, first.own)
    share = torch.where(pasted, last.share, first.share)
    if probability < 1:
        # Drawn last and applied by a mask: shapes stay static, and boxes do not depend on it.
        unmixed = torch.rand((), device=device) >= probability
        own, share = own.masked_fill(unmixed, 1.0), share.masked_fill(unmixed, 1.0)
    return Mix(own, share)


def _share(alpha: float, device: torch.device) -> Tensor:
    concentration = torch.full((), alpha, device=device)
    # Validation would read values back from the device.
    drawn: Tensor = Beta(concentration, concentration, validate_args=False).sample()
    return drawn


def mix_batch(x: Tensor, targets: Tensor, mix: Mix, classes: int) -> tuple[Tensor, Tensor]:
    """Images and soft targets, each mixed with its partner: row n with row N - 1 - n.

    Images (N, C, H, W) are floating point; the middle one of an odd batch is its own partner.
    Targets are (N,) classes, or (N, K) shares of them; those returned are (N, K), and rows sum to
    1.

    >>> x = torch.tensor([0.0, 8.0]).view(2, 1, 1, 1)
    >>> mixed, soft = mix_batch(x, torch.tensor([0, 2]), blend(torch.tensor(0.75), 1, 1), 3)
    >>> mixed.flatten(), soft.tolist()
    (tensor([2., 6.]), [[0.75, 0.0, 0.25], [0.25, 0.0, 0.75]])
    """
    own, share = mix.own.to(x.dtype), mix.share
    soft = one_hot(targets, classes) if targets.ndim == 1 else targets
    return x * own + x.flip(0) * (1 - own), soft * share + soft.flip(0) * (1 - share)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(N, K) float32; unlike torch's one_hot, it never reads values back from the device."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).float()
