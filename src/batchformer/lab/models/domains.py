"""Layers for several domains: gradient reversal and MixStyle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Beta

from batchformer.torch_private import Dropout


def reverse_gradient(x: Tensor, coefficient: Tensor | float) -> Tensor:
    """Gradient reversal (Ganin and Lempitsky, 2015): ``x``, with gradient times -coefficient.

    If the coefficient is a 0-d tensor on the device of `x`, a captured update uses its current
    value.

    >>> x = torch.ones(2, requires_grad=True)
    >>> reverse_gradient(3 * x, 0.1).sum().backward()
    >>> x.grad
    tensor([-0.3000, -0.3000])
    """
    out: Tensor = _Reversed.apply(x, torch.as_tensor(coefficient))
    return out


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient: Tensor) -> Tensor:
        ctx.save_for_backward(coefficient)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (coefficient,) = ctx.saved_tensors
        return -coefficient * gradients[0], None


# MixStyle (Zhou et al., 2021): mix channel statistics between domains.

#: Added to variances.
EPS = 1e-6


def mix_styles(x: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Each sample, normalised, with a mean and deviation between its own and its partner's.

    Samples are (N, C, H, W). `share` (N,) is how much of its own style a sample keeps, the rest is
    that of the row `partner` (N,). Statistics are per sample and channel, over pixels, and no
    gradient passes through them. The population variance is used, so that a map of one pixel has
    one. Statistics are computed in float32 or wider; the result has the type of `x`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    variance, mean = torch.var_mean(x.detach().to(wide), (2, 3), correction=0, keepdim=True)
    deviation = (variance + EPS).sqrt()
    own = share.to(wide).view(-1, 1, 1, 1)
    scale = (own * deviation + (1 - own) * deviation[partner]) / deviation
    shift = own * mean + (1 - own) * mean[partner] - scale * mean
    return torch.addcmul(shift, x.to(wide), scale).to(x.dtype)


def draw_partners(groups: int, rows: int, device: torch.device) -> Tensor:
    """Draw, on the device, a partner (rows,) in another of `groups` blocks for each row.

    All blocks are shifted by the same number, drawn from 1 to groups - 1, and each is shuffled, so
    every row is the partner of exactly one other. Two blocks always swap.
    """
    size = rows // groups
    block = torch.arange(groups, device=device)
    moved = (block + torch.randint(1, groups, (), device=device)) % groups
    order = torch.rand(groups, size, device=device).argsort(1)
    return (moved.unsqueeze(1) * size + order).flatten()


# A subclass of dropout, so that code that disables dropout in training disables it too.
class MixStyle(Dropout):
    """Mixes styles between the domains of a batch, in training, with a probability.

    It draws and decides on the device, so that an update can be captured.

    Args:
        p: probability that a batch is mixed.
        alpha: the share of each sample is drawn from Beta(alpha, alpha).
        groups: G, the batch's equal blocks of rows, one domain each.
    """

    def __init__(self, p: float = 0.5, alpha: float = 0.1, groups: int = 2) -> None:
        super().__init__(p)
        if alpha <= 0 or groups < 2:
            raise ValueError(
                f"MixStyle needs alpha above 0 and at least 2 groups, got {alpha} and {groups}."
            )
        self.alpha, self.groups = alpha, groups

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape; `x` itself in eval."""
        if not self.training:
            return x
        if x.ndim != 4 or len(x) % self.groups:
            raise ValueError(
                f"MixStyle got {tuple(x.shape)} and needs (N, C, H, W) with N rows in "
                f"{self.groups} equal blocks, one domain each: set data.sampler domains and a "
                "batch size that they divide."
            )
        with torch.no_grad():
            partner = draw_partners(self.groups, len(x), x.device)
            concentration = torch.full((len(x),), self.alpha, device=x.device)
            # Validation would read values back from the device.
            share = Beta(concentration, concentration, validate_args=False).sample()
            chosen = torch.rand((), device=x.device) < self.p
            share = torch.where(chosen, share, 1.0)
        return mix_styles(x, share, partner)

    def extra_repr(self) -> str:
        return f"p={self.p:g}, alpha={self.alpha:g}, groups={self.groups}"


def insert_mixstyle(
    network: nn.Module, after: Sequence[str], p: float = 0.5, alpha: float = 0.1, groups: int = 2
) -> None:
    """Append MixStyle to stages of a network, each an ``nn.Sequential``; names do not change.

    >>> from batchformer.lab.models.networks import digits_net
    >>> network = digits_net(10)
    >>> insert_mixstyle(network, ["layer1"])
    >>> network.layer1
    Sequential(
      (0): MixStyle(p=0.5, alpha=0.1, groups=2)
    )
    """
    stages = {n: m for n, m in network.named_modules() if n and isinstance(m, nn.Sequential)}
    unknown = [name for name in after if name not in stages]
    if unknown:
        outer = [name for name in stages if "." not in name] or list(stages)
        raise ValueError(
            f"{type(network).__name__} has no stage (an nn.Sequential) named {', '.join(unknown)}. "
            f"MixStyle can stand after {', '.join(outer) or 'none of its parts'}: set "
            "hyper.mixstyle-after."
        )
    for name in after:
        stages[name].append(MixStyle(p, alpha, groups))
