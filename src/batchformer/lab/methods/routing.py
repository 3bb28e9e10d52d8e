"""Routers that decide, after each expert, whether a sample needs the next one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def running_means(expert_logits: Tensor) -> Tensor:
    """Logits (E, N, K) to the means of the first 1, 2, ..., E experts, (E, N, K)."""
    numbers = torch.arange(1, len(expert_logits) + 1, device=expert_logits.device)
    return expert_logits.cumsum(0) / numbers.view(-1, 1, 1)


def worth_going_on(means: Tensor, targets: Tensor) -> Tensor:
    """Where an answer is wrong and that of some more experts is right: (E - 1, N) booleans.

    Args:
        means: (E, N, K) of :func:`running_means`.
        targets: (N,) class indices.

    >>> means = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    >>> worth_going_on(means, torch.tensor([1])).flatten()
    tensor([True, True])
    >>> worth_going_on(means, torch.tensor([0])).flatten()
    tensor([False, False])
    """
    right = means.argmax(-1) == targets
    right_later = right.flip(0).int().cummax(0).values.flip(0).bool()
    return ~right[:-1] & right_later[1:]


class ExpertRouters(nn.Module):
    """For every expert but the last, a score above 0 where the next should be asked.

    Each expert has a layer of its own for its features; all share the layer that makes the score
    of that and of the largest logits so far.

    Args:
        experts: E.
        in_features: C.
        top: largest logits that are seen, in falling order.
        width: channels made of the features.
    """

    def __init__(self, experts: int, in_features: int, top: int, width: int) -> None:
        super().__init__()
        self.top = top
        self.hidden = nn.ModuleList(nn.Linear(in_features, width) for _ in range(experts - 1))
        self.output = nn.Linear(width + top, 1)

    def forward(self, expert: int, features: Tensor, mean_logits: Tensor) -> Tensor:
        """Scores (N,) after an expert with features (N, C) and the running mean (N, K)."""
        hidden = F.relu(self.hidden[expert](F.normalize(features, dim=1)))
        largest = mean_logits.topk(self.top, dim=1).values
        scores: Tensor = self.output(torch.cat((hidden, largest.to(hidden.dtype)), 1))
        return scores.squeeze(1)
