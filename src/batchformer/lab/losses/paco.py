"""PaCo (Cui et al., 2021): supervised contrast against samples and learned class centres."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened
from batchformer.lab.losses.long_tailed import ClassCounts, checked_counts

#: Added to the share of each class, so that a class without images has a finite logarithm.
PRIOR_FLOOR = 1e-9


def log_prior(class_counts: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``log(p_c + 1e-9)`` (K,), with ``p_c`` the share of class c among the training images.

    >>> log_prior(torch.tensor([3, 1])).exp()
    tensor([0.7500, 0.2500])
    """
    counts = class_counts.to(dtype)
    return (counts / counts.sum() + PRIOR_FLOOR).log()


def paco(
    queries: Tensor,
    keys: Tensor,
    queue: Tensor,
    centre_logits: Tensor,
    targets: Tensor,
    queue_targets: Tensor,
    class_counts: Tensor,
    *,
    alpha: float,
    temperature: float,
    queue_valid: Tensor,
) -> Tensor:
    """Parametric contrastive loss; a scalar, the mean over the N queries.

    Each query i is compared with the K centres, ``z_ic + log p_c``, and with all other queries, all
    keys and the queue, ``q_i . f / temperature``. Its positives are its class's centre, with weight
    1, and the samples of its class, each with weight `alpha`. Its loss is ``-sum(w log p) /
    sum(w)`` over them, where the denominator of ``p`` adds the exponentials of the centres and of
    the samples. With two streams, give all 2N rows.

    Computed in float32 or wider, also under autocast. Shapes are static and nothing is read back
    from the device, so a CUDA graph can capture it. Gradients flow to all inputs that require
    them: compute `keys` and `queue` without gradients.

    Args:
        queries: (N, D), of length one.
        keys: (N, D), of length one, of the same samples.
        queue: (Q, D), keys of earlier samples.
        centre_logits: (N, K).
        targets: (N,) class indices of queries and keys.
        queue_targets: (Q,).
        class_counts: (K,) training images of each class.
        alpha: weight of a sample among the positives.
        queue_valid: (Q,) booleans, False where the queue holds no key yet.
    """
    require_shapes(
        "paco, with N the rows of both streams,",
        queries=(queries, "N D"),
        keys=(keys, "N D"),
        queue=(queue, "Q D"),
        centre_logits=(centre_logits, "N K"),
        targets=(targets, "N"),
        queue_targets=(queue_targets, "Q"),
        class_counts=(class_counts, "K"),
        queue_valid=(queue_valid, "Q"),
    )
    queries = widened(queries)
    dtype = queries.dtype
    with torch.autocast(queries.device.type, enabled=False):
        others = torch.cat([queries, keys.to(dtype), queue.to(dtype)])
        samples = queries @ others.T / temperature  # (N, 2N + Q)
    centres = centre_logits.to(dtype) + log_prior(class_counts, dtype)  # (N, K)

    rows = torch.arange(len(queries), device=queries.device)
    columns = torch.arange(len(others), device=queries.device)
    valid = torch.cat([queue_valid.new_ones(2 * len(queries)), queue_valid])
    usable = (rows.unsqueeze(1) != columns) & valid
    same_class = targets.unsqueeze(1) == torch.cat([targets, targets, queue_targets])
    positive = same_class & usable

    rivals = samples.masked_fill(~usable, -math.inf)
    log_total = torch.cat([centres, rivals], 1).logsumexp(1, keepdim=True)
    of_centre = (centres - log_total).gather(1, targets.unsqueeze(1)).squeeze(1)
    of_samples = (samples - log_total).masked_fill(~positive, 0.0).sum(1)
    weights = 1 + alpha * positive.sum(1, dtype=dtype)
    return -((of_centre + alpha * of_samples) / weights).mean()


class CentreLoss(nn.Module):
    """PaCo's loss without the contrast of samples: that of the class centres alone.

    Args:
        class_counts: (K,) training images of each class; some may have none.
    """

    class_counts: Tensor

    def __init__(self, class_counts: ClassCounts) -> None:
        super().__init__()
        counts = checked_counts(class_counts, "PaCo")
        # They describe the data and not the model, so they stay out of its state.
        self.register_buffer("class_counts", counts.float(), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of centre logits (N, K) against targets (N,), in float32 or wider."""
        scores = widened(logits)
        return F.cross_entropy(scores + log_prior(self.class_counts, scores.dtype), targets)
