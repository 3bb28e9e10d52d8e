from __future__ import annotations

import pytest
import torch
from torchvision.transforms import AutoAugment, RandAugment

from batchformer.lab.data.transforms.autoaugment import has_sign, magnitudes, parameters

SPACE = {**AutoAugment()._augmentation_space(10, (32, 48))}
NAMES = {
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    **{name: name.lower() for name in SPACE if not name.startswith(("Shear", "Translate"))},
}


@pytest.mark.parametrize("theirs", SPACE)
@pytest.mark.parametrize("bins", [10, 31])
def test_magnitudes_and_signs_are_torchvisions(theirs: str, bins: int) -> None:
    space = AutoAugment()._augmentation_space(bins, (32, 48))
    size, signed = space[theirs]
    ours = magnitudes(NAMES[theirs], 32, 48, bins)
    assert torch.equal(ours, size.double().expand(bins))
    assert has_sign(NAMES[theirs]) == signed
    if theirs != "Invert":
        other, also_signed = RandAugment()._augmentation_space(bins, (32, 48))[theirs]
        assert torch.equal(other, size) and also_signed == signed


def test_parameters() -> None:
    size = torch.tensor([0.3, 0.3, 0.9, 0.9, 4.0], dtype=torch.float64)
    negative = torch.tensor([False, True, False, True, True])
    signed = torch.tensor([True, True, True, True, False])
    factor = torch.tensor([False, False, True, True, False])
    out = parameters(size, negative, signed, factor)
    assert out.tolist() == pytest.approx([0.3, -0.3, 1.9, 0.1, 4.0])
