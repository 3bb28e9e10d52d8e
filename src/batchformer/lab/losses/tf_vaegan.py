"""TF-VAEGAN (Narayan et al., 2020): decoded attributes, a VAE of features, a penalty's weight.

The formulas are those of the released code.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened

#: A mean penalty above the first raises the weight by this factor; below the second lowers it.
TOO_LARGE, TOO_SMALL, FACTOR = 1.05, 1.001, 1.1


def decoding_error(decoded: Tensor, attributes: Tensor) -> Tensor:
    """Mean over rows of ``sum_j |e_j|^3 / |e|`` with ``e = decoded - attributes``; a scalar.

    Each channel's absolute error is weighted by its share of the row's error. A row without error
    counts 0 and has no gradient. Computed in float32 or wider.

    Args:
        decoded: (N, A).
        attributes: (N, A).

    >>> decoding_error(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))  # (27 + 64) / 5
    tensor(18.2000)
    """
    require_shapes("decoding_error", decoded=(decoded, "N A"), attributes=(attributes, "N A"))
    wide = widened(decoded)
    error = wide - attributes.to(wide.dtype)
    lengths: Tensor = torch.linalg.vector_norm(error, dim=1, keepdim=True)
    cubes: Tensor = error.abs().pow(3) / lengths.clamp(min=torch.finfo(wide.dtype).tiny)
    return cubes.sum(1).mean()


def vae_loss(made: Tensor, x: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """The negative evidence bound of features in [0, 1], the mean over rows; a scalar.

    The cross-entropy of each channel, summed over channels, plus the divergence of
    ``N(mean, variance)`` from N(0, 1). Computed in float32 or wider, also under autocast.

    Args:
        made: (N, D) in (0, 1), features that the generator makes again.
        x: (N, D) in [0, 1].
        mean: (N, Z) of the noise, given the features.
        log_variance: (N, Z).
    """
    dtype = widened(made).dtype
    made, x, mean, log_variance = (t.to(dtype) for t in (made, x, mean, log_variance))
    with torch.autocast(made.device.type, enabled=False):
        again = F.binary_cross_entropy(made, x.detach(), reduction="sum")
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (again + divergence) / len(x)


def adapted_weight(weight: Tensor, penalty: Tensor) -> Tensor:
    """The weight of the gradient penalty after some steps of the critic with this mean penalty.

    Nothing is read back from the device.

    Args:
        weight: 0-d.
        penalty: 0-d, without its weight.

    >>> [adapted_weight(torch.tensor(10.0), torch.tensor(p)).item() for p in (2.0, 1.01)]
    [11.0, 10.0]
    """
    smaller = torch.where(penalty < TOO_SMALL, weight / FACTOR, weight)
    return torch.where(penalty > TOO_LARGE, weight * FACTOR, smaller)
