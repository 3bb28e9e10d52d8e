"""What every transform is, and what it asks of its input."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

# Copies of at most this many bytes from ordinary memory to a CUDA device return at once; larger
# ones may wait for the device unless they start from page-locked memory.
_STAGED_BYTES = 64 * 1024


class Transform(Protocol):
    """A pure function of images and uniform numbers, sample by sample.

    Row n of the result depends on row n of both inputs alone, so that rows may be put together and
    taken apart in any way without a change of one bit. Nothing waits for the device of the images.
    """

    @property
    def draws(self) -> int:
        """How many uniform numbers one sample needs."""

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Images (N, C, H, W) and numbers (N, draws), float64 in [0, 1) on the CPU, to images."""


def columns(transform: Transform, x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """The `draws` columns (N,) of `u`, or an error that says what u should have been."""
    wanted = (len(x), transform.draws)
    if tuple(u.shape) != wanted or u.dtype != torch.float64 or u.device.type != "cpu":
        raise ValueError(
            f"{type(transform).__name__} needs u of shape {wanted}, torch.float64 on the CPU, got "
            f"{tuple(u.shape)}, {u.dtype} on {u.device}; draw it with "
            f"torch.rand(len(x), transform.draws, dtype=torch.float64, generator=...)"
        )
    return u.unbind(1)


def require_uint8(name: str, x: Tensor) -> None:
    """Refuse images that are not whole grey levels."""
    if x.dtype != torch.uint8:
        raise TypeError(
            f"{name} acts on uint8 images 0..255, got {x.dtype}; put it before Normalise"
        )


def send(parameter: Tensor, device: torch.device) -> Tensor:
    """Move a tensor from the CPU to the device of the images without waiting for that device."""
    if device.type == "cuda" and parameter.nbytes > _STAGED_BYTES:
        # An expanded tensor has fewer elements in memory than pinning would write.
        parameter = parameter.contiguous().pin_memory()
    return parameter.to(device, non_blocking=True)
