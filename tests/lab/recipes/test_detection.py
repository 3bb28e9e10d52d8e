from __future__ import annotations

from typing import get_args

from batchformer.lab.config.arms import with_arm
from batchformer.lab.models.faster_rcnn import Kind
from batchformer.lab.recipes import RECIPES, find_recipe

NAMES = [name for name in RECIPES if find_recipe(name).task == "detection"]


def test_there_are_the_papers_and_two_of_ours() -> None:
    assert set(NAMES) == {"voc_moco_v2", "voc_moco_v3", "voc_fpn", "my_voc"}
    assert {find_recipe(name).hyper.detector for name in NAMES} == set(get_args(Kind))


def test_random_weights_begin_with_none() -> None:
    recipe = with_arm(find_recipe("voc_moco_v3"), "random_weights")
    assert recipe.start == recipe.weights == ""
