"""Operations on the values of uint8 batches, one parameter per sample.

Each follows torchvision's operation on uint8 tensors. All arithmetic on values is in integers, with
parameters in fixed point, so every device gives the same image to the bit; torchvision's floating-
point result differs from it by at most one grey level.

Images are (N, C, H, W) uint8 with C = 1 or 3. Parameters are (N,) tensors on the CPU and are moved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import send

_BITS = 16
_ONE = 1 << _BITS
# The rounding of a factor to fixed point moves a pixel by at most 255 / 2 units; adding it before
# truncation keeps values that are whole numbers from falling to the next lower one.
_SLACK = 128


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black: 0 is black, 1 the image itself, more is brighter."""
    return _to_uint8(x * _fixed(factor, x))


def color(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's own grey version; images of one channel stay as they are."""
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
    """Turn the hue round the colour circle by -0.5..0.5 turns; one channel stays as it is.

    In HSV a channel lies below the largest one by the span, largest less smallest, times a
    function of the hue that rises from 0 to 1, stays there and falls back to 0 along the circle.
    With the hue counted in sixths of the circle times the span, all of it is in whole numbers.
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
    # Where red, green and blue begin on the circle, made on the device: 5, 3 and 1 sixths.
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
    # A thirteenth is never half-way between whole numbers, so every device rounds it alike.
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
    return x & send(mask.to(torch.uint8), x.device).view(-1, 1, 1, 1)


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above the threshold."""
    lowest = send(threshold.ceil().to(torch.int16), x.device).view(-1, 1, 1, 1)
    return torch.where(x >= lowest, 255 - x, x)


def solarize_add(x: Tensor, addition: Tensor) -> Tensor:
    """Add a whole number to the values below 128, up to white; timm's, which torchvision lacks."""
    more = send(addition.to(torch.int16), x.device).view(-1, 1, 1, 1)
    return torch.where(x < 128, (x + more).clamp(max=255), x).to(torch.uint8)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a channel of one value stays as it is."""
    low, high = x.amin((2, 3), keepdim=True).int(), x.amax((2, 3), keepdim=True).int()
    stretched = (x.int() - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, x).to(torch.uint8)


def equalize(x: Tensor) -> Tensor:
    """Give each channel an even histogram; a channel with too few steps stays as it is."""
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
    return send(fixed, x.device).view(-1, 1, 1, 1)


def _to_uint8(value: Tensor) -> Tensor:
    return ((value + _SLACK) >> _BITS).clamp(0, 255).to(torch.uint8)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """`factor * x + (1 - factor) * other`, with `other` in fixed point."""
    weight = _fixed(factor, x)
    # Two halves of the fixed-point product keep it within int32.
    whole, fraction = other >> _BITS, other & (_ONE - 1)
    rest = whole * (_ONE - weight) + ((fraction >> 8) * (_ONE - weight) >> 8)
    return _to_uint8(x * weight + rest)


def _grey(x: Tensor) -> Tensor:
    """(N, 1, H, W) luma of each pixel, rounded down, with torchvision's weights."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.int().unbind(1)
    return ((2989 * red + 5870 * green + 1140 * blue) // 10000)[:, None]
