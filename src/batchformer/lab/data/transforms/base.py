"""What a transform is, and what transforms share: parameters, chosen samples, composition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

# Copies of at most this many bytes from ordinary memory to a CUDA device return at once; larger
# ones may wait for the device unless they start from page-locked memory.
_STAGED_BYTES = 64 * 1024


class Transform(Protocol):
    """A pure function of images and uniform numbers, sample by sample.

    Row n of the result depends on row n of both inputs alone, so that rows can be batched in any
    way without changing a bit. No transform waits for the device of the images.
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
    """Refuse images that are not uint8."""
    if x.dtype != torch.uint8:
        raise TypeError(
            f"{name} acts on uint8 images 0..255, got {x.dtype}; put it before Normalise"
        )


def to_device_async(parameter: Tensor, device: torch.device) -> Tensor:
    """Move a tensor from the CPU to the device of the images without waiting for that device."""
    if device.type == "cuda" and parameter.nbytes > _STAGED_BYTES:
        # An expanded tensor has fewer elements in memory than pinning would write.
        parameter = parameter.contiguous().pin_memory()
    return parameter.to(device, non_blocking=True)


# Parameters from uniform numbers in [0, 1), on the CPU in float64.


def uniform_int(u: Tensor, count: int | Tensor) -> Tensor:
    """Integers 0..count - 1, all equally likely; `count` may differ by sample.

    >>> import torch
    >>> uniform_int(torch.tensor([0.0, 0.3, 0.99], dtype=torch.float64), 4)
    tensor([0, 1, 3])
    """
    return (u * count).floor().long()


def uniform_float(u: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers in [low, high)."""
    return low + (high - low) * u


def apply_where(
    x: Tensor, chosen: Tensor, act: Callable[..., Tensor], *parameters: Tensor
) -> Tensor:
    """Apply one operation to the chosen samples (N,) only.

    `act` takes images and one tensor for each of the `parameters`, which are (N, ...) on the CPU.
    It is called with the rows of the chosen samples alone, and must keep the images' shape.
    """
    rows = chosen.nonzero().squeeze(1)
    if not len(rows):
        return x
    group = to_device_async(rows, x.device)
    out = x.clone()
    out[group] = act(x[group], *(parameter[rows] for parameter in parameters))
    return out


@dataclass(frozen=True)
class Compose:
    """Transforms in sequence; each gets its own columns of the uniform numbers.

    >>> from batchformer.lab.data.transforms import RandomCrop, RandomFlip
    >>> Compose((RandomCrop(), RandomFlip())).draws
    3
    """

    transforms: tuple[Transform, ...]

    @property
    def draws(self) -> int:
        return sum(transform.draws for transform in self.transforms)

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        """`u` may be left out if nothing is random."""
        if u is None:
            u = torch.empty(len(x), 0, dtype=torch.float64)
        columns(self, x, u)
        for transform in self.transforms:
            own, u = u[:, : transform.draws], u[:, transform.draws :]
            x = transform(x, own)
        return x


@dataclass(frozen=True)
class Normalise:
    """`(x - mean) / std` per channel, on images scaled to 0..1; `u` may be left out.

    Images are (N, C, H, W), uint8 in 0..255 (they become float32) or floating point in 0..1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    draws: ClassVar[int] = 0

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        if x.shape[1] != len(self.mean):
            raise ValueError(
                f"x has {x.shape[1]} channels (N, C, H, W) but mean has {len(self.mean)}"
            )
        white = 1 if x.is_floating_point() else 255
        x = x.clone() if x.is_floating_point() else x.float()
        # The statistics are scaled to the range of x, not x to theirs: CUDA divides by a plain
        # number through its reciprocal and would differ from the CPU in the last bit.
        # In place on the copy: new memory for a large batch costs more than the arithmetic.
        return x.sub_(_per_channel(self.mean, white, x)).div_(_per_channel(self.std, white, x))


def _per_channel(values: tuple[float, ...], white: int, like: Tensor) -> Tensor:
    scaled = [value * white for value in values]
    on_cpu = torch.tensor(scaled, dtype=like.dtype).view(1, -1, 1, 1)
    return to_device_async(on_cpu, like.device)
