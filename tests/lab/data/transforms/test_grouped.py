from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op
from torchvision.transforms.functional import adjust_hue

from batchformer.lab.data.transforms import color as ops
from batchformer.lab.data.transforms.color import (
    ENHANCEMENTS,
    IDENTITY,
    OPERATIONS,
    apply_in_sequence,
    apply_where,
)

Images = Callable[..., Tensor]
# One parameter that does something, for each operation; no warp has a source half-way between two
# pixels, which might be taken from the other side.
VALUES = {
    "shear_x": 0.2113,
    "shear_y": -0.1771,
    "translate_x": 3.0,
    "translate_y": -4.0,
    "rotate": 20.3,
    "brightness": 1.4,
    "color": 0.3,
    "contrast": 1.7,
    "sharpness": 0.2,
    "hue": 0.2,
    "posterize": 4.0,
    "solarize": 100.0,
    "solarize_add": 70.0,
}
TITLES = {"shear_x": "ShearX", "shear_y": "ShearY", "autocontrast": "AutoContrast"}
TITLES |= {"translate_x": "TranslateX", "translate_y": "TranslateY"}


def _torchvision(image: Tensor, code: int) -> Tensor:
    if code == IDENTITY:
        return image
    name = OPERATIONS[code]
    value = VALUES.get(name, 0.0)
    if name == "hue":
        out: Tensor = adjust_hue(image, value)
    elif name == "solarize_add":  # torchvision has none
        out = torch.where(image < 128, image + int(value), image)
    else:
        title, nearest = TITLES.get(name, name.title()), InterpolationMode.NEAREST
        out = _apply_op(image, title, value - (name in ENHANCEMENTS), nearest, [128.0])
    return out


def _values(code: Tensor) -> Tensor:
    table = [VALUES.get(name, 0.0) for name in OPERATIONS] + [0.0]
    return torch.tensor(table, dtype=torch.float64)[code]


@settings(max_examples=25, deadline=None)
@given(codes=st.lists(st.integers(0, IDENTITY), min_size=1, max_size=24))
def test_each_sample_gets_its_own_operation(codes: list[int], images: Images) -> None:
    x = images(len(codes), 3, 17, 14)
    before = x.clone()
    code = torch.tensor([codes])
    out = apply_in_sequence(x, code, _values(code), fill=128)
    assert torch.equal(x, before)
    for image, ours, c in zip(x, out, codes, strict=True):
        assert (ours.int() - _torchvision(image, c).int()).abs().max() <= 1


def test_operations_follow_each_other(images: Images) -> None:
    x = images(8)
    names = ("solarize", "invert", "brightness")
    code = torch.tensor([[OPERATIONS.index(name)] * 8 for name in names])
    expected = ops.invert(ops.solarize(x, torch.full((8,), 100.0)))
    expected = ops.brightness(expected, torch.full((8,), 1.4))
    assert torch.equal(apply_in_sequence(x, code, _values(code)), expected)


def test_nothing_to_do_is_a_copy(images: Images) -> None:
    x = images(3)
    code = torch.full((2, 3), IDENTITY)
    out = apply_in_sequence(x, code, torch.zeros(2, 3))
    assert torch.equal(out, x) and out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("rows", [[], [2], [0, 3, 4], list(range(6))])
def test_the_chosen_are_changed_with_their_own_parameters(rows: list[int], images: Images) -> None:
    x = images(6)
    before = x.clone()
    chosen = torch.zeros(6, dtype=torch.bool)
    chosen[rows] = True
    factor = torch.linspace(0.2, 1.8, 6)
    out = apply_where(x, chosen, ops.brightness, factor)
    assert torch.equal(x, before)
    assert torch.equal(out, torch.where(chosen.view(-1, 1, 1, 1), ops.brightness(x, factor), x))
