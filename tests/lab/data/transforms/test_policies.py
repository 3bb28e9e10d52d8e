from __future__ import annotations

import pytest
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from batchformer.lab.data.transforms.autoaugment import POLICIES, PolicyName

SPELLED = {"AutoContrast": "autocontrast", "ShearX": "shear_x", "ShearY": "shear_y"}
SPELLED |= {"TranslateX": "translate_x", "TranslateY": "translate_y"}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_torchvisions(name: PolicyName) -> None:
    theirs = AutoAugment(AutoAugmentPolicy(name)).policies
    spelled = tuple(
        tuple((SPELLED.get(op, op.lower()), p, place or 0) for op, p, place in pair)
        for pair in theirs
    )
    assert POLICIES[name] == spelled and len(spelled) == 25
