from __future__ import annotations

from typing import get_args

import pytest

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import DetectionConfig
from batchformer.lab.models.faster_rcnn import Kind
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.folder import recipe_from_json, recipe_to_json

NAMES = [name for name in RECIPES if find_recipe(name).task == "detection"]


def test_there_are_the_papers_and_two_of_ours() -> None:
    assert set(NAMES) == {"voc_moco_v2", "voc_moco_v3", "voc_fpn", "my_voc"}
    assert {find_recipe(name).hyper.detector for name in NAMES} == set(get_args(Kind))


@pytest.mark.parametrize("name", NAMES)
def test_recipes_survive_being_written(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name and recipe_from_json(recipe_to_json(recipe)) == recipe
    assert isinstance(recipe.data, DetectionConfig)


@pytest.mark.parametrize(
    ("name", "start", "ap", "with_batchformer"),
    [
        ("voc_moco_v2", "imagenet_moco_v2", 56.4, 56.7),
        ("voc_moco_v3", "imagenet_moco_v3", 46.6, 48.0),
    ],
)
def test_the_papers_protocol(name: str, start: str, ap: float, with_batchformer: float) -> None:
    recipe = find_recipe(name)
    assert recipe.start == start and start in RECIPES
    assert find_recipe(start).model == recipe.model == "resnet50"
    assert recipe.paper["baseline"]["ap"] == ap
    assert recipe.paper["batchformer"]["ap"] == with_batchformer
    assert list(recipe.paper["baseline"]) == ["ap", "ap50", "ap75"]
    assert (recipe.train.updates, recipe.train.batch_size) == (24_000, 16)
    assert recipe.schedule.milestones == (18_000, 22_000) and recipe.schedule.warmup == 100
    optim = recipe.optim
    assert (optim.name, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.02, 0.9, 1e-4)
    assert isinstance(recipe.data, DetectionConfig)
    assert recipe.data.trained_on == ("2007/trainval", "2012/trainval")
    assert recipe.data.scored_on == ("2007/test",)
    assert recipe.data.shorter == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    assert (recipe.data.shorter_at_test, recipe.data.longest) == (800, 1333)
    assert recipe.data.precise_norm == 200 and recipe.train.sync_norm


def test_ones_own_images_have_running_means() -> None:
    data = find_recipe("my_voc").data
    assert isinstance(data, DetectionConfig) and data.precise_norm == 0


def test_random_weights_begin_with_none() -> None:
    recipe = with_arm(find_recipe("voc_moco_v3"), "random_weights")
    assert recipe.start == recipe.weights == ""
