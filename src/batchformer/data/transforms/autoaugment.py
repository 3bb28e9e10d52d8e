"""AutoAugment with the CIFAR-10 policy, over whole batches of uint8 images.

One of 25 sub-policies is drawn for each sample; each of its two operations acts with its own
probability. Magnitudes are torchvision's, in bins of 10. Older implementations on PIL images differ
from them slightly, for instance solarizing from 256 instead of 255.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from batchformer.data.transforms import ops, warps

# ((operation, probability, bin), (operation, probability, bin)); bin 0 where it has no meaning.
CIFAR10_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)

BINS = 10
# The largest shift, 150 pixels of an image of 331, that the policy was searched with.
_LARGEST_SHIFT = 150 / 331

# Operations by what their magnitude m means; +m and -m are equally likely where it has a sign.
_WARPS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "shear_x": warps.shear_x,
    "shear_y": warps.shear_y,
    "translate_x": warps.translate_x,
    "translate_y": warps.translate_y,
    "rotate": warps.rotate,
}
_ENHANCEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # factor 1 + m
    "brightness": ops.brightness,
    "color": ops.color,
    "contrast": ops.contrast,
    "sharpness": ops.sharpness,
}
_LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # no sign
    "posterize": ops.posterize,
    "solarize": ops.solarize,
}
_FIXED: dict[str, Callable[[Tensor], Tensor]] = {  # no magnitude
    "autocontrast": ops.autocontrast,
    "equalize": ops.equalize,
    "invert": ops.invert,
}
OPERATIONS = (*_WARPS, *_ENHANCEMENTS, *_LEVELS, *_FIXED)


def magnitudes(operation: str, height: int, width: int) -> Tensor:
    """(10,) magnitude of each bin of an operation, before the sign."""
    if operation in ("shear_x", "shear_y"):
        return torch.linspace(0, 0.3, BINS)
    if operation in ("translate_x", "translate_y"):
        side = width if operation == "translate_x" else height
        return torch.linspace(0, _LARGEST_SHIFT * side, BINS)
    if operation == "rotate":
        return torch.linspace(0, 30, BINS)
    if operation in _ENHANCEMENTS:
        return torch.linspace(0, 0.9, BINS)
    if operation == "posterize":
        return torch.linspace(8, 4, BINS).round()
    if operation == "solarize":
        return torch.linspace(255, 0, BINS)
    return torch.zeros(BINS)


class Draws(NamedTuple):
    """What one batch of N samples draws: (N,), (2, N) and (2, N), on the CPU."""

    sub_policy: Tensor
    chance: Tensor
    positive: Tensor


def draw(n: int, generator: torch.Generator) -> Draws:
    """Draw sub-policies, chances of the two operations, and signs for `n` samples."""
    return Draws(
        torch.randint(len(CIFAR10_POLICY), (n,), generator=generator),
        torch.rand(2, n, generator=generator),
        torch.randint(2, (2, n), generator=generator).bool(),
    )


class _Table(NamedTuple):
    """The policy as tensors (2, 25): operation code, probability, magnitude, whether signed."""

    code: Tensor
    probability: Tensor
    magnitude: Tensor
    signed: Tensor


@lru_cache
def _table(height: int, width: int) -> _Table:
    """The policy for images of one size."""
    columns = list(zip(*CIFAR10_POLICY, strict=True))
    bins = {name: magnitudes(name, height, width) for name in OPERATIONS}
    return _Table(
        torch.tensor([[OPERATIONS.index(name) for name, _, _ in ops_] for ops_ in columns]),
        torch.tensor([[p for _, p, _ in ops_] for ops_ in columns]),
        torch.tensor([[float(bins[name][b]) for name, _, b in ops_] for ops_ in columns]),
        torch.tensor(
            [[name in _WARPS or name in _ENHANCEMENTS for name, _, _ in ops_] for ops_ in columns]
        ),
    )


def auto_augment(x: Tensor, draws: Draws, fill: int = 128) -> Tensor:
    """Apply the drawn sub-policies to `x` (N, C, H, W) uint8.

    The samples that drew one operation, or any of the warps, are taken out, changed together and
    put back. All bookkeeping is on the CPU, where the draws are, so no device is waited for.

    Args:
        x: (N, C, H, W) uint8.
        draws: what each sample drew.
        fill: value of pixels that a warp takes from outside the image.
    """
    if x.dtype != torch.uint8:
        raise TypeError(f"AutoAugment acts on uint8 images 0..255, got {x.dtype}; put it first")
    table = _table(*x.shape[-2:])
    x = x.clone()
    for position in range(2):
        drawn = draws.sub_policy
        acts = draws.chance[position] < table.probability[position, drawn]
        code = table.code[position, drawn].where(acts, len(OPERATIONS))
        order = code.argsort(stable=True)
        magnitude = table.magnitude[position, drawn]
        negative = table.signed[position, drawn] & ~draws.positive[position]
        magnitude = magnitude.where(~negative, -magnitude)[order]
        sizes = torch.bincount(code, minlength=len(OPERATIONS) + 1).tolist()
        _apply(x, order.to(x.device, non_blocking=True), magnitude, sizes, fill)
    return x


def _apply(x: Tensor, order: Tensor, magnitude: Tensor, sizes: list[int], fill: int) -> None:
    """Change x in place: the first `sizes[0]` samples of `order` by `OPERATIONS[0]`, and so on."""
    groups = dict(zip(OPERATIONS, torch.split(order, sizes), strict=False))
    m = dict(zip(OPERATIONS, torch.split(magnitude, sizes), strict=False))
    # Warps come first in OPERATIONS, so that their samples are the first of the order.
    warped = order[: sum(len(groups[name]) for name in _WARPS)]
    if len(warped):
        matrix = torch.cat([make(m[name], *x.shape[-2:]) for name, make in _WARPS.items()])
        x[warped] = warps.warp(x[warped], matrix, fill)
    for name, group in groups.items():
        if name in _WARPS or not len(group):
            continue
        if name in _ENHANCEMENTS:
            x[group] = _ENHANCEMENTS[name](x[group], 1 + m[name])
        elif name in _LEVELS:
            x[group] = _LEVELS[name](x[group], m[name])
        else:
            x[group] = _FIXED[name](x[group])


@dataclass(frozen=True)
class AutoAugment:
    """`auto_augment` with fresh draws for each batch."""

    fill: int = 128

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return auto_augment(x, draw(len(x), generator), self.fill)
