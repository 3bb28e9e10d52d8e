"""Different operations on different samples of one uint8 batch.

The samples that share an operation, or that are warped in any way, are taken out, changed together
and put back. All bookkeeping is on the CPU, where the choices are, so no device is waited for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from batchformer.lab.data.transforms import ops, warps
from batchformer.lab.data.transforms.contract import require_uint8, send

WARPS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "shear_x": warps.shear_x,
    "shear_y": warps.shear_y,
    "translate_x": warps.translate_x,
    "translate_y": warps.translate_y,
    "rotate": warps.rotate,
}
ENHANCEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # by a factor, 1 for no change
    "brightness": ops.brightness,
    "color": ops.color,
    "contrast": ops.contrast,
    "sharpness": ops.sharpness,
}
_LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hue": ops.hue,
    "posterize": ops.posterize,
    "solarize": ops.solarize,
    "solarize_add": ops.solarize_add,
}
_FIXED: dict[str, Callable[[Tensor], Tensor]] = {  # without a parameter
    "autocontrast": ops.autocontrast,
    "equalize": ops.equalize,
    "invert": ops.invert,
}
#: A sample's operation is given by its place in this list; warps are first.
OPERATIONS = (*WARPS, *ENHANCEMENTS, *_LEVELS, *_FIXED)
#: The code of no operation at all.
IDENTITY = len(OPERATIONS)


def apply_in_sequence(
    x: Tensor, code: Tensor, parameter: Tensor, fill: int | tuple[int, ...] = 0
) -> Tensor:
    """Apply to each sample its own sequence of P operations.

    Args:
        x: (N, C, H, W) uint8.
        code: (P, N) on the CPU: the place in `OPERATIONS` of each sample's operations, or
            `IDENTITY`.
        parameter: (P, N) on the CPU: slope, pixels or degrees of a warp, factor of an
            enhancement, turns of a hue, bits, threshold or addition; ignored where there is none.
        fill: value of pixels that a warp takes from outside the image, or C of them.
    """
    require_uint8("An operation of a policy", x)
    x = x.clone()
    for operation, value in zip(code, parameter, strict=True):
        order = operation.argsort(stable=True)
        sizes = torch.bincount(operation, minlength=IDENTITY + 1).tolist()
        _apply(x, send(order, x.device), value[order], sizes, fill)
    return x


def _apply(
    x: Tensor, order: Tensor, parameter: Tensor, sizes: list[int], fill: int | tuple[int, ...]
) -> None:
    """Change x in place: the first `sizes[0]` samples of `order` by `OPERATIONS[0]`, and so on."""
    groups = dict(zip(OPERATIONS, torch.split(order, sizes), strict=False))
    values = dict(zip(OPERATIONS, torch.split(parameter, sizes), strict=False))
    warped = order[: sum(len(groups[name]) for name in WARPS)]
    if len(warped):
        matrix = torch.cat([make(values[name], *x.shape[-2:]) for name, make in WARPS.items()])
        x[warped] = warps.warp(x[warped], matrix, fill)
    for name, group in groups.items():
        if name in WARPS or not len(group):
            continue
        if name in _FIXED:
            x[group] = _FIXED[name](x[group])
        else:
            act = ENHANCEMENTS.get(name) or _LEVELS[name]
            x[group] = act(x[group], values[name])


def apply_where(
    x: Tensor, chosen: Tensor, act: Callable[..., Tensor], *parameters: Tensor
) -> Tensor:
    """Apply one operation to the chosen samples alone.

    Args:
        x: (N, C, H, W).
        chosen: (N,) bool on the CPU.
        act: function of images and of one tensor for each parameter, that keeps the shape.
        parameters: each (N,) on the CPU; `act` is given those of the chosen samples.
    """
    rows = chosen.nonzero().squeeze(1)
    if not len(rows):
        return x
    group = send(rows, x.device)
    out = x.clone()
    out[group] = act(x[group], *(parameter[rows] for parameter in parameters))
    return out
