"""What MoCo cannot be told is refused in a recipe, before anything is built."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from batchformer.lab.config.methods import MethodConfig, ModuleConfig, require_contrast_sense
from batchformer.lab.recipes import find_recipe

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"loss_scale": "official"}, {}, "adds its terms"),
    ({"mixed_weight": 0.5}, {}, "no weight of its own"),
    ({"streams": "mixed_only"}, {"contrast_pairs": "plain"}, "there is one stream"),
    ({}, {"contrast_pairs": "readme"}, "a list of the released MoCo-v3"),
]


@pytest.mark.parametrize(("module", "hyper", "words"), REFUSED)
def test_refused_with_batchformer_alone(
    module: dict[str, Any], hyper: dict[str, Any], words: str
) -> None:
    settings = MethodConfig(**hyper)
    with pytest.raises(ValueError, match=words):
        require_contrast_sense("moco_v2", ModuleConfig(**module), settings)
    require_contrast_sense("moco_v2", ModuleConfig(**module, enabled=False), settings)
    recipe = find_recipe("cifar100_lt_moco_v2")
    changed = dataclasses.replace(recipe.module, **module)
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(
            recipe, module=changed, hyper=dataclasses.replace(recipe.hyper, **hyper)
        )


def test_lists_of_moco_v3_are_its_own() -> None:
    for pairs in ("first_release", "readme"):
        require_contrast_sense("moco_v3", ModuleConfig(), MethodConfig(contrast_pairs=pairs))
