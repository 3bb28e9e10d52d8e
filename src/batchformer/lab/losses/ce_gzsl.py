"""CE-GZSL (Han et al., 2021): contrast of samples and of classes, and the critic's penalty."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened


def supervised_contrast(directions: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrast (Khosla et al., 2020) of samples with samples; a scalar.

    With similarities ``s_ij = z_i . z_j / temperature``, the loss of sample i is the mean over the
    other samples p of its class of ``log sum_{j != i} exp(s_ij) - s_ip``. The mean is over samples
    that have such a p; without any it is 0. It is computed in float32 or wider, also under
    autocast; shapes are static and nothing is read back from the device.

    Args:
        directions: (N, Z) z, of length one.
        labels: (N,) class numbers.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> supervised_contrast(z, torch.tensor([4, 4, 7]), 1.0)  # log(e + 1) - 1
    tensor(0.3133)
    """
    require_shapes("supervised_contrast", directions=(directions, "N Z"), labels=(labels, "N"))
    z = widened(directions)
    with torch.autocast(z.device.type, enabled=False):
        similarities = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = (labels.unsqueeze(1) == labels) & ~itself
    count = positive.sum(1)
    total = similarities.masked_fill(itself, -math.inf).logsumexp(1)
    mean = similarities.masked_fill(~positive, 0.0).sum(1) / count.clamp(min=1)
    has = count > 0
    return torch.where(has, total - mean, 0.0).sum() / has.sum().clamp(min=1)


def class_contrast(scores: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Contrast of samples with classes: the mean cross-entropy of ``scores / temperature``.

    Args:
        scores: (N, S) of each sample with each class.
        targets: (N,) numbers within these S classes.
    """
    return F.cross_entropy(widened(scores) / temperature, targets)


def gradient_penalty(
    critic: Callable[[Tensor, Tensor], Tensor],
    real: Tensor,
    fake: Tensor,
    condition: Tensor,
    share: Tensor,
) -> Tensor:
    """Gulrajani et al., 2017: mean of ``(|g| - 1)^2``, with g the critic's gradient; a scalar.

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
    both = {"real": (real, "N D"), "fake": (fake, "N D")}
    require_shapes("gradient_penalty", **both, share=(share, "N 1"))
    between = (share * real.detach() + (1 - share) * fake.detach()).requires_grad_()
    scores = critic(between, condition)
    (gradient,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    lengths: Tensor = torch.linalg.vector_norm(widened(gradient), dim=1)
    return (lengths - 1).square().mean()
