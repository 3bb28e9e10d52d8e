"""Random brightness, contrast, saturation and hue of uint8 batches, as torchvision's ColorJitter.

Values are computed in fixed point, alike on every device. Each of the four operations is within
one grey level of torchvision's on uint8 images; in sequence they may move a pixel a little further,
since a later operation enlarges what an earlier one rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns
from batchformer.lab.data.transforms.grouped import IDENTITY, OPERATIONS, apply_in_sequence
from batchformer.lab.data.transforms.uniform import between, whole

#: Brightness, contrast, saturation and hue.
FOUR = ("brightness", "contrast", "color", "hue")
_CODES = torch.tensor([OPERATIONS.index(name) for name in FOUR])
#: (24, 4): every order of the four.
ORDERS = torch.tensor(list(permutations(range(len(FOUR)))))


def color_jitter(x: Tensor, order: Tensor, parameter: Tensor, acts: Tensor) -> Tensor:
    """Apply the four operations to `x` (N, C, H, W) uint8, in an order of each sample's own.

    Args:
        x: (N, C, H, W) uint8 with C = 1 or 3; saturation and hue leave one channel as it is.
        order: (N, 4) on the CPU: places in `FOUR`, the first to act first.
        parameter: (N, 4) on the CPU: factors of brightness, contrast and saturation, and turns of
            the hue.
        acts: (N, 4) bool on the CPU: which of `FOUR` act.
    """
    code = _CODES.where(acts, IDENTITY).gather(1, order)
    return apply_in_sequence(x, code.T, parameter.gather(1, order).T)


@dataclass(frozen=True)
class ColorJitter:
    """Random brightness, contrast, saturation and hue in random order, with probability `p`.

    Args:
        brightness: factors are uniform in [max(0, 1 - brightness), 1 + brightness].
        contrast: likewise.
        saturation: likewise.
        hue: turns round the colour circle are uniform in [-hue, hue]; at most 0.5.
        p: probability that a sample is changed at all.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    p: float = 1.0
    draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation, self.hue) < 0 or self.hue > 0.5:
            raise ValueError(
                f"strengths must not be negative and hue must be at most 0.5, got {self}"
            )

    def parameters(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `color_jitter` takes, out of numbers (N, 6): order, parameters, and what acts."""
        chance, order, *numbers = u.unbind(1)
        strengths = (self.brightness, self.contrast, self.saturation)
        drawn = [
            between(v, max(0.0, 1 - s), 1 + s) for v, s in zip(numbers[:3], strengths, strict=True)
        ]
        drawn.append(between(numbers[3], -self.hue, self.hue))
        present = torch.tensor([*strengths, self.hue]) > 0
        acts = (chance < self.p)[:, None] & present
        return ORDERS[whole(order, len(ORDERS))], torch.stack(drawn, 1), acts

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        return color_jitter(x, *self.parameters(u))
