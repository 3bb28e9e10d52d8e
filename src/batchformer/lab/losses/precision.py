"""Losses are computed in float32 or wider."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 if it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
