"""IZF (Shen et al., 2020): likelihood of a flow, class centres, and distance from seen features.

No official code was released. The losses are those that later implementations ascribe to the paper;
what is marked as our choice is not known from either.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from batchformer.lab.losses import require_shapes


def flow_loss(mapped: Tensor, log_det: Tensor, semantics: Tensor) -> Tensor:
    """The negative log-likelihood of features under a flow, the mean over rows; a scalar.

    The first A channels of the mapped features follow N(semantics, I), the others N(0, I).

    Args:
        mapped: (N, D).
        log_det: (N,) log |det| of the map's Jacobian at each row.
        semantics: (N, A) of each row's class.
    """
    shapes = {"log_det": (log_det, "N"), "semantics": (semantics, "N A")}
    require_shapes("flow_loss", mapped=(mapped, "N D"), **shapes)
    found, free = mapped.tensor_split((semantics.shape[1],), dim=1)
    squares = (found - semantics).square().sum(1) + free.square().sum(1)
    constant = mapped.shape[1] * math.log(2 * math.pi)
    return (0.5 * (squares + constant) - log_det).mean()


def centre_loss(centres: Tensor, features: Tensor, classes: Tensor) -> Tensor:
    """Sum over the classes of a batch of the distance between their centre and their mean.

    Distances are not squared; whether the paper squares them is not known. Shapes are static, and
    nothing is read back from the device.

    Args:
        centres: (S, D) generated for each class.
        features: (N, D) real.
        classes: (N,) numbers within the S classes.
    """
    numbers = torch.arange(len(centres), device=classes.device)
    own = (classes.unsqueeze(1) == numbers).to(features.dtype)
    count = own.sum(0)
    with torch.autocast(features.device.type, enabled=False):
        means = own.T @ features / count.clamp(min=1).unsqueeze(1)
    distances = torch.linalg.vector_norm(centres - means, dim=1)
    return torch.where(count > 0, distances, 0.0).sum()


def negative_mmd(real: Tensor, made: Tensor) -> Tensor:
    """The negative squared maximum mean discrepancy of two sets of rows; a scalar.

    The kernel is ``2D / (2D + |x - u|^2)``, and the terms within each set leave out pairs of a row
    with itself. Minimising it moves the sets apart.

    Args:
        real: (N, D).
        made: (N, D).

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> [round(negative_mmd(x, other).item(), 4) for other in (x, x + 1e6)]
    [0.5, -1.0]
    """
    require_shapes("negative_mmd", real=(real, "N D"), made=(made, "N D"))
    rows = len(real)
    if rows < 2:
        raise ValueError("negative_mmd compares rows within a set, and needs at least two of each.")
    between = _kernel(real, made).sum() * (2 / rows**2)
    # The kernel of each row with itself is 1.
    inside = _kernel(real, real).sum() + _kernel(made, made).sum() - 2 * rows
    return between - inside / (rows * (rows - 1))


def _kernel(x: Tensor, u: Tensor) -> Tensor:
    """(N, M) ``2D / (2D + |x - u|^2)`` of rows (N, D) and (M, D)."""
    # Centring changes no distance; without it, products of rows far from 0 would lose precision.
    middle = u.detach().mean(0)
    x, u = x - middle, u - middle
    # Kernels of two sets differ by less than half precision resolves.
    with torch.autocast(x.device.type, enabled=False):
        squares = x.square().sum(1).unsqueeze(1) + u.square().sum(1) - 2 * x @ u.T
    scale = 2 * x.shape[1]
    return scale / (scale + squares.clamp(min=0))
