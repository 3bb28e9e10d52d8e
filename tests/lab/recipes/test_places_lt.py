"""Places-LT's recipes say what the protocol says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import given_weights


def test_balms() -> None:
    recipe = find_recipe("places_lt_balms")
    assert recipe.model == "resnet152" and recipe.weights and not recipe.start
    assert recipe.train.batch_size == 256 and recipe.train.updates == 10 * 245
    assert (recipe.data.meta_batch, recipe.data.meta_from) == (512, "val")
    hyper = recipe.hyper
    assert (hyper.sampler_power, hyper.sampler_lr) == (0.3, 1e-3)
    assert hyper.inner_lr == 0, "the trial step is SGD's own"
    assert (recipe.optim.lr, recipe.module.lr_factor) == (0.02, 0.1)


def test_tau_norm_works_on_the_same_file() -> None:
    recipe = find_recipe("places_lt_tau_norm")
    assert recipe.weights == find_recipe("places_lt_balms").weights
    assert recipe.train.updates == 1 and recipe.data.meta_batch == 0


def test_paco() -> None:
    recipe = find_recipe("places_lt_paco")
    assert recipe.hyper.norm_parts == 1, "the paper trains on one GPU"
    assert recipe.weights == "timm" and recipe.model == "resnet152.tv_in1k"
    assert recipe.convolutions == "last_block" and recipe.data.augment == "simclr"
    assert recipe.train.updates == 30 * 488 and recipe.train.precision == "fp16"
    assert recipe.schedule.warmup == 4 and recipe.schedule.per == "epoch"
    assert recipe.optim.lr == 0.02 and recipe.data.scored_on == "test"


@pytest.mark.parametrize("name", ["places_lt_balms", "places_lt_tau_norm"])
def test_features_beside_the_data_are_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path / "elsewhere"))
    recipe = find_recipe(name)
    recipe = dataclasses.replace(recipe, data=recipe.data_with(root=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match=r"--weights FILE.*--weights timm"):
        given_weights(recipe)
    (tmp_path / "resnet152_uniform.pth").touch()
    assert given_weights(recipe) == tmp_path / "resnet152_uniform.pth"
    assert given_weights(dataclasses.replace(recipe, weights="timm")) is None
