"""Every arm is the recipe with one thing changed."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.recipes import RECIPES, find_recipe
from batchformer.recipes.arms import ARMS, with_arm

CHANGED = {
    "baseline": {"module.enabled": False},
    "batchformer": {},
    "batchformer_self": {"module.attend": "self"},
    "batchformer_frozen": {"module.trained": False},
    "batchformer_mixed_only": {"module.streams": "mixed_only"},
    "batchformer_official_loss": {"module.loss_scale": "official"},
    "batchformer_official_grouping": {"hyper.irm_grouping": "official"},
    "random_weights": {"module.enabled": False},
    "baseline_loss1.5x": {"module.enabled": False, "train.loss_multiplier": 1.5},
    "baseline_loss3x": {"module.enabled": False, "train.loss_multiplier": 3.0},
}


def flat(recipe: object, prefix: str = "") -> dict[str, object]:
    values: dict[str, object] = {}
    for field in dataclasses.fields(recipe):  # type: ignore[arg-type]
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            values |= flat(value, f"{prefix}{field.name}.")
        else:
            values[prefix + field.name] = value
    return values


@pytest.mark.parametrize("arm", ARMS)
def test_what_an_arm_changes(arm: str) -> None:
    recipe = find_recipe("demo")
    before, after = flat(recipe), flat(with_arm(recipe, arm))
    assert {key: after[key] for key in after if after[key] != before[key]} == CHANGED[arm]


def test_unknown_arms_are_named() -> None:
    with pytest.raises(ValueError, match="there are baseline, batchformer"):
        with_arm(find_recipe("demo"), "batchfromer")


@pytest.mark.parametrize("name", [n for n in RECIPES if find_recipe(n).method in ("ride", "paco")])
def test_an_arm_without_sense_is_refused_and_the_others_are_not(name: str) -> None:
    recipe = find_recipe(name)
    for arm in set(ARMS) - {"batchformer_official_loss"}:
        with_arm(recipe, arm)
    with pytest.raises(ValueError, match="Not possible"):
        with_arm(recipe, "batchformer_official_loss")
