"""Options start from the recipe and go back into it."""

from __future__ import annotations

from batchformer.cli.options import CompareOptions, Settings, TrainOptions
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.recipes import RECIPES, find_recipe


def test_unchanged_options_give_the_recipe_back() -> None:
    for name in RECIPES:
        recipe = find_recipe(name)
        assert TrainOptions(**Settings.fields_of(recipe)).applied_to(recipe) == recipe


def test_the_paper_s_numbers_stay_with_its_data_network_and_method() -> None:
    recipe = find_recipe("cifar100_lt_balanced_softmax")
    fields = Settings.fields_of(recipe)
    faster = CompareOptions(**fields | {"optim": OptimConfig(lr=0.7)}).applied_to(recipe)
    assert faster.paper and faster.optim.lr == 0.7
    for change in (
        {"data": {"name": "folder", "root": "mine", "augment": "jitter"}},
        {"data": {"ratio": 50.0}},
        {"data": {"profile": "step"}},
        {"model": "resnet18"},
        {"method": "cross_entropy"},
    ):
        other = Settings.fields_of(recipe.changed(**change))
        changed = CompareOptions(**other).applied_to(recipe)
        assert (changed.paper, changed.table) == ({}, "not in the paper"), change


def test_a_row_is_also_told_by_experts_worlds_detectors_and_images() -> None:
    for name, change in (
        ("imagenet_lt_ride_resnet50", {"hyper": {"experts": 4}}),
        ("voc_moco_v3", {"hyper": {"detector": "fpn"}}),
        ("imagenet_lt_paco", {"data": {"per_class": 10}}),
        ("mit_states_cge", {"data": {"world": "open"}}),
    ):
        recipe = find_recipe(name)
        assert recipe.paper and recipe.changed(**change).row != recipe.row, name
