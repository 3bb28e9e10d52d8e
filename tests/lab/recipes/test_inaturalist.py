"""iNaturalist's recipes say what the protocol says."""

from __future__ import annotations

import pytest

from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import find_recipe


def test_ride() -> None:
    recipe = find_recipe("inaturalist18_ride")
    assert recipe.model == "ride_resnet50" and recipe.data.augment == "resized"
    per_epoch = 1094  # 437,513 images in batches of 400
    assert recipe.train.batch_size == 400 and recipe.train.updates == 100 * per_epoch
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.optim.nesterov) == (0.2, 2e-4, True)
    assert (recipe.hyper.diversity, recipe.hyper.temperature_factor) == (-0.2, 0.015)
    assert recipe.hyper.reweight_epoch == 80 and recipe.module.streams == "mixed_only"
    rates = [
        lr_factor(recipe.schedule, epoch * per_epoch, recipe.train.updates, per_epoch)
        for epoch in (0, 4, 52, 99)
    ]
    assert rates == pytest.approx([0.2, 1.0, 0.5, 0.0], abs=1e-3)


def test_crt_starts_from_cross_entropy() -> None:
    recipe, before = find_recipe("inaturalist18_crt"), find_recipe("inaturalist18_cross_entropy")
    assert recipe.start == before.name and recipe.data.sampler == "class_balanced"
    assert before.data.sampler == "shuffle" and before.model == recipe.model == "resnet50"
    assert recipe.train.updates * 9 == before.train.updates, "10 epochs after 90"


def test_paco_has_its_own_weight_decay() -> None:
    recipe = find_recipe("inaturalist18_paco")
    assert recipe.optim.weight_decay == 1e-4 and recipe.data.augment == "paco"
    assert recipe.hyper.norm_parts == 4
    assert recipe.train.updates == 400 * 3418 and set(recipe.paper) == {"baseline"}
