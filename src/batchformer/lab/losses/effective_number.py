"""Class weights by the effective number of samples (Cui et al., 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from batchformer.lab.losses.class_counts import ClassCounts, checked_counts


def effective_number_weights(
    class_counts: ClassCounts, beta: float = 0.9999, *, allow_empty: bool = False
) -> Tensor:
    """Weights (K,) in inverse proportion to ``(1 - beta^n_c) / (1 - beta)``, of mean one.

    With ``beta=0`` all weights are 1; towards ``beta=1`` they become inverse frequencies. Deferred
    re-weighting (Cao et al., 2019) trains without them at first and with them at the end.

    Args:
        class_counts: (K,) training images of each class.
        beta: in [0, 1).
        allow_empty: a class without images gets weight 0 and the others sum to their own number;
            otherwise such a class is an error.

    >>> effective_number_weights([1, 3], beta=0.5)  # effective numbers 1 and 1.75
    tensor([1.2727, 0.7273])
    """
    if not 0 <= beta < 1:
        raise ValueError(
            f"effective_number_weights needs beta in [0, 1), got {beta}; inverse frequencies are "
            f"the limit, for example 0.999999"
        )
    counts = checked_counts(class_counts, "effective_number_weights", allow_empty=allow_empty)
    present = counts > 0
    # expm1 keeps 1 - beta^n exact where beta^n is close to 1.
    effective = torch.ones_like(counts) if beta == 0 else -torch.expm1(counts * math.log(beta))
    weights = torch.where(present, effective, torch.inf).reciprocal()
    return (weights * (present.sum() / weights.sum())).to(torch.get_default_dtype())
