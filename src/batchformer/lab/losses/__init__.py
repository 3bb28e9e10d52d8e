"""Losses, one family per file: pure functions, and thin modules where a loss has state."""

from __future__ import annotations

import torch
from torch import Tensor


def require_shapes(who: str, **tensors: tuple[Tensor, str]) -> None:
    """Refuse tensors whose axes do not agree; each comes with the names of its axes.

    >>> require_shapes("ldam", logits=(torch.zeros(6, 4), "N K"), targets=(torch.zeros(5), "N"))
    Traceback (most recent call last):
    ...
    ValueError: ldam needs logits (N, K) and targets (N,), got (6, 4) and (5,).
    """
    sizes, needed, got, fits = {"1": 1}, [], [], True
    for name, (tensor, axes) in tensors.items():
        names = axes.split()
        needed.append(f"{name} ({', '.join(names)}{',' * (len(names) == 1)})")
        got.append(str(tuple(tensor.shape)))
        pairs = zip(names, tensor.shape, strict=False)
        agree = all(sizes.setdefault(axis, size) == size for axis, size in pairs)
        fits = fits and agree and tensor.ndim == len(names)
    if not fits:
        lists = (" and ".join((", ".join(each[:-1]), each[-1])) for each in (needed, got))
        raise ValueError("{} needs {}, got {}.".format(who, *lists))


def widened(x: Tensor) -> Tensor:
    """``x`` in float32, or unchanged if it is float64; losses use no narrower type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
