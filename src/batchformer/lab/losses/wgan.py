"""Conditional Wasserstein GAN with a gradient penalty (Gulrajani et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def critic_difference(fake: Tensor, real: Tensor) -> Tensor:
    """``mean(fake) - mean(real)`` of the critic's scores, which the critic minimises; a scalar.

    Its negative estimates the distance between the two distributions.

    >>> critic_difference(fake=torch.tensor([1.0, 3.0]), real=torch.tensor([5.0]))
    tensor(-3.)
    """
    return fake.mean() - real.mean()


def gradient_penalty(
    critic: Callable[[Tensor, Tensor], Tensor],
    real: Tensor,
    fake: Tensor,
    condition: Tensor,
    share: Tensor,
) -> Tensor:
    """Mean of ``(|g| - 1)^2``, with g the critic's gradient between real and fake; a scalar.

    ``g`` is the gradient with respect to the features at ``share * real + (1 - share) * fake``,
    each row with its own condition. The penalty has gradients for the critic's weights, not for
    `real` and `fake`. Norms are computed in float32 or wider.

    Args:
        critic: features (N, D) and conditions (N, A) to scores (N,), each from its row alone.
        real: (N, D).
        fake: (N, D).
        condition: (N, A), attributes of each row's class.
        share: (N, 1), uniform in [0, 1]; the caller draws it, and so chooses the generator.
    """
    if real.shape != fake.shape or share.shape != (len(real), 1):
        raise ValueError(
            "gradient_penalty needs real and fake (N, D) and share (N, 1), got "
            f"{tuple(real.shape)}, {tuple(fake.shape)} and {tuple(share.shape)}."
        )
    between = (share * real.detach() + (1 - share) * fake.detach()).requires_grad_()
    scores = critic(between, condition)
    (gradient,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(gradient.to(wide), dim=1)
    return (lengths - 1).square().mean()
