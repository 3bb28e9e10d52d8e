"""Losses, one family per file: pure functions, and thin modules where a loss has state."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 if it is; losses are computed in no narrower type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
