"""Operations on the values of uint8 batches: jitter, grey, solarize and others.

Each follows torchvision's operation on uint8 tensors. All arithmetic on values is in integers, with
parameters in fixed point, so every device gives the same image to the bit; torchvision's
floating-point result differs from it by at most one grey level.

Images are (N, C, H, W) uint8 with C = 1 or 3. Parameters are (N,) tensors on the CPU, one value per
sample, and are moved to the device here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms import geometry as warps
from batchformer.lab.data.transforms.base import (
    apply_where,
    columns,
    require_uint8,
    to_device_async,
    uniform_float,
    uniform_int,
)

_BITS = 16
_ONE = 1 << _BITS
# Rounding a factor to fixed point moves a pixel by at most 255 / 2 units; adding that before
# truncation keeps whole numbers from falling to the next lower one.
_SLACK = 128


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black: 0 is black, 1 is the image, more is brighter."""
    return _to_uint8(x * _fixed(factor, x))


def color(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image; images of one channel stay as they are."""
    if x.shape[1] == 1:
        return x
    return _blend(x, _grey(x).int() << _BITS, factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean grey of the image."""
    # int64: the sum of the grey values in fixed point outgrows int32.
    grey = _grey(x).flatten(1).long()
    mean = ((grey.sum(1) << _BITS) // grey.shape[1]).int()
    return _blend(x, mean.view(-1, 1, 1, 1), factor)


def hue(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue by -0.5..0.5 turns; images of one channel stay as they are.

    In HSV, a channel is the largest one minus the span (largest minus smallest) times a function of
    the hue that rises from 0 to 1, stays there and falls back to 0 along the circle. With the hue
    in units of a sixth of the circle times the span, everything is in whole numbers.
    """
    if x.shape[1] == 1:
        return x
    wide = x.int()
    red, green, blue = torch.split(wide, 1, 1)
    high, low = wide.amax(1, keepdim=True), wide.amin(1, keepdim=True)
    span = high - low
    place = torch.where(
        high == red,
        green - blue,
        torch.where(high == green, 2 * span + blue - red, 4 * span + red - green),
    )
    # Red, green and blue begin at 5, 3 and 1 sixths of the circle; made on the device.
    begin = torch.arange(5, 0, -2, dtype=torch.int32, device=x.device).view(1, 3, 1, 1)
    circle = (6 * span).clamp(min=1) << _BITS
    place = (((place + begin * span) << _BITS) + span * _fixed(6 * turns, x)).remainder(circle)
    below = torch.minimum(torch.minimum(place, (4 * span << _BITS) - place), span << _BITS)
    value = (high << _BITS) - below.clamp(min=0)
    # torchvision multiplies 0..1 by 255.999 and truncates; 255.999 / 255 is close to 1 + 1 / 256.
    return ((value + (value >> 8)) >> _BITS).to(torch.uint8)


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3x3 smoothed version; pixels of the border stay as they are."""
    if min(x.shape[-2:]) <= 2:
        return x
    # Weights 1 around a centre of 5, over 13: the sum of the 3x3 window and 4 times the centre.
    wide = x.int()
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    window = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = wide[..., 1:-1, 1:-1]
    # A thirteenth is never half-way between whole numbers, so every device rounds it the same way.
    smooth = ((window + 4 * inner) / 13).round().int()
    out = x.clone()
    out[..., 1:-1, 1:-1] = _blend(inner, smooth << _BITS, factor)
    return out


def grey(x: Tensor) -> Tensor:
    """Replace each channel by the luma; images of one channel stay as they are."""
    return _grey(x).to(torch.uint8).expand_as(x)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the given number of leading bits of each value."""
    mask = 256 - (1 << (8 - bits.int()))
    return x & to_device_async(mask.to(torch.uint8), x.device).view(-1, 1, 1, 1)


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above the threshold."""
    lowest = to_device_async(threshold.ceil().to(torch.int16), x.device).view(-1, 1, 1, 1)
    return torch.where(x >= lowest, 255 - x, x)


def solarize_add(x: Tensor, addition: Tensor) -> Tensor:
    """Add a whole number to the values below 128, up to white; timm's, which torchvision lacks."""
    more = to_device_async(addition.to(torch.int16), x.device).view(-1, 1, 1, 1)
    return torch.where(x < 128, (x + more).clamp(max=255), x).to(torch.uint8)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a channel of one value stays as it is."""
    low, high = x.amin((2, 3), keepdim=True).int(), x.amax((2, 3), keepdim=True).int()
    stretched = (x.int() - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, x).to(torch.uint8)


def equalize(x: Tensor) -> Tensor:
    """Equalize the histogram of each channel; a channel with too few steps stays as it is."""
    flat = x.flatten(2).long()
    ones = torch.ones((), dtype=torch.int32, device=x.device).expand_as(flat)
    histogram = torch.zeros(*flat.shape[:2], 256, dtype=torch.int32, device=x.device)
    histogram.scatter_add_(2, flat, ones)
    brightest = x.flatten(2).amax(2, keepdim=True).long()
    step = (flat.shape[2] - histogram.gather(2, brightest)) // 255
    below = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    equalized = table.gather(2, flat).view_as(x)
    return torch.where(step[..., None] > 0, equalized, x)


def invert(x: Tensor) -> Tensor:
    """Replace each value v by 255 - v."""
    return 255 - x


def _fixed(value: Tensor, x: Tensor) -> Tensor:
    """(N,) float on the CPU -> (N, 1, 1, 1) fixed point on the device of `x`."""
    fixed = (value.double() * _ONE).round().int()
    return to_device_async(fixed, x.device).view(-1, 1, 1, 1)


def _to_uint8(value: Tensor) -> Tensor:
    return ((value + _SLACK) >> _BITS).clamp(0, 255).to(torch.uint8)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """`factor * x + (1 - factor) * other`, with `other` in fixed point."""
    weight = _fixed(factor, x)
    # Computing the fixed-point product in two halves keeps it within int32.
    whole, fraction = other >> _BITS, other & (_ONE - 1)
    rest = whole * (_ONE - weight) + ((fraction >> 8) * (_ONE - weight) >> 8)
    return _to_uint8(x * weight + rest)


def _grey(x: Tensor) -> Tensor:
    """(N, 1, H, W) luma of each pixel, rounded down, with torchvision's weights."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.int().unbind(1)
    return ((2989 * red + 5870 * green + 1140 * blue) // 10000)[:, None]


# Different operations on different samples of one batch. The samples that share an operation, and
# all that are warped, are taken out, changed together and put back. The bookkeeping is on the CPU,
# where the choices are, so nothing waits for the device.

WARPS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "shear_x": warps.shear_x,
    "shear_y": warps.shear_y,
    "translate_x": warps.translate_x,
    "translate_y": warps.translate_y,
    "rotate": warps.rotate,
}
ENHANCEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # by a factor, 1 for no change
    "brightness": brightness,
    "color": color,
    "contrast": contrast,
    "sharpness": sharpness,
}
_BY_PARAMETER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **ENHANCEMENTS,
    "hue": hue,
    "posterize": posterize,
    "solarize": solarize,
    "solarize_add": solarize_add,
}
_FIXED: dict[str, Callable[[Tensor], Tensor]] = {  # without a parameter
    "autocontrast": autocontrast,
    "equalize": equalize,
    "invert": invert,
}
#: An operation is coded by its position in this tuple; warps are first.
OPERATIONS = (*WARPS, *_BY_PARAMETER, *_FIXED)
#: The code of no operation.
IDENTITY = len(OPERATIONS)


def apply_in_sequence(
    x: Tensor, code: Tensor, parameter: Tensor, fill: int | tuple[int, ...] = 0
) -> Tensor:
    """Apply to each sample its own sequence of P operations.

    Args:
        x: (N, C, H, W) uint8.
        code: (P, N) on the CPU: positions in `OPERATIONS`, or `IDENTITY`.
        parameter: (P, N) on the CPU: slope, pixels or degrees of a warp, factor of an
            enhancement, turns of a hue, bits, threshold or addition; otherwise ignored.
        fill: value of pixels from outside the image, or C of them.
    """
    require_uint8("An operation of a policy", x)
    x = x.clone()
    for codes, drawn in zip(code, parameter, strict=True):
        order = codes.argsort(stable=True)
        sizes = torch.bincount(codes, minlength=IDENTITY + 1).tolist()
        on_device = torch.split(to_device_async(order, x.device), sizes)
        groups = dict(zip(OPERATIONS, on_device, strict=False))
        values = dict(zip(OPERATIONS, torch.split(drawn[order], sizes), strict=False))
        warped = torch.cat(on_device[: len(WARPS)])
        if len(warped):
            matrix = torch.cat([make(values[name], *x.shape[-2:]) for name, make in WARPS.items()])
            x[warped] = warps.warp(x[warped], matrix, fill)
        for name, group in groups.items():
            if name in _FIXED and len(group):
                x[group] = _FIXED[name](x[group])
            elif name in _BY_PARAMETER and len(group):
                x[group] = _BY_PARAMETER[name](x[group], values[name])
    return x


# Random transforms.

#: Brightness, contrast, saturation and hue.
FOUR = ("brightness", "contrast", "color", "hue")
_CODES = torch.tensor([OPERATIONS.index(name) for name in FOUR])
#: (24, 4): every order of `FOUR`.
ORDERS = torch.tensor(list(permutations(range(len(FOUR)))))


@dataclass(frozen=True)
class ColorJitter:
    """Random brightness, contrast, saturation and hue in random order, with probability `p`.

    Each of the four operations is within one grey level of torchvision's ColorJitter on uint8
    images; in sequence they may differ a little more, since later operations amplify rounding.
    """

    brightness: float = 0.0  # its factors are uniform in [max(0, 1 - brightness), 1 + brightness]
    contrast: float = 0.0  # likewise
    saturation: float = 0.0  # likewise
    hue: float = 0.0  # turns of the colour circle are uniform in [-hue, hue]; at most 0.5
    p: float = 1.0  # probability that a sample is changed at all
    draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation, self.hue) < 0 or self.hue > 0.5:
            raise ValueError(
                f"strengths must not be negative and hue must be at most 0.5, got {self}"
            )

    def parameters(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From numbers (N, 6): order, parameters and which operations act, all (N, 4).

        The order lists positions in `FOUR`. Parameters are factors, or turns for the hue.
        """
        chance, order, *numbers = u.unbind(1)
        strengths = (self.brightness, self.contrast, self.saturation)
        drawn = [
            uniform_float(v, max(0.0, 1 - s), 1 + s)
            for v, s in zip(numbers[:3], strengths, strict=True)
        ]
        drawn.append(uniform_float(numbers[3], -self.hue, self.hue))
        present = torch.tensor([*strengths, self.hue]) > 0
        acts = (chance < self.p)[:, None] & present
        return ORDERS[uniform_int(order, len(ORDERS))], torch.stack(drawn, 1), acts

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        order, parameter, acts = self.parameters(u)
        code = _CODES.where(acts, IDENTITY).gather(1, order)
        return apply_in_sequence(x, code.T, parameter.gather(1, order).T)


@dataclass(frozen=True)
class RandomGrey:
    """Make all channels of a sample equal to its luma with probability `p`.

    Within one grey level of torchvision, whose floating-point luma is truncated.
    """

    p: float = 0.1
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        require_uint8("RandomGrey", x)
        (chance,) = columns(self, x, u)
        return apply_where(x, chance < self.p, grey)


@dataclass(frozen=True)
class RandomSolarize:
    """Invert the values of a sample at or above `threshold` with probability `p`."""

    threshold: int = 128
    p: float = 0.5
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        require_uint8("RandomSolarize", x)
        (chance,) = columns(self, x, u)
        threshold = torch.tensor(float(self.threshold)).expand(len(x))
        return apply_where(x, chance < self.p, solarize, threshold)
