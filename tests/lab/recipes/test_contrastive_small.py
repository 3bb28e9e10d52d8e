"""Contrastive learning on CIFAR-100-LT, digits and one's own images: what must hold together."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import ContrastConfig, LongTailConfig
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.shared import IMAGES

LEARNT = ["cifar100_lt_moco_v2", "cifar100_lt_moco_v3", "digits_moco_v3", "my_folder_moco_v3"]
ON_FEATURES = {
    name: find_recipe(name).start
    for name in RECIPES
    if find_recipe(name).method in ("linear_probe", "knn") and "imagenet" not in name
}


def test_every_features_are_probed_and_compared() -> None:
    assert len(ON_FEATURES) == 2 * len(LEARNT) and set(ON_FEATURES.values()) == set(LEARNT)


@pytest.mark.parametrize("name", LEARNT)
def test_what_learns(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.task == "contrastive" and isinstance(recipe.data, ContrastConfig)
    assert recipe.module.lr_factor == 1 and recipe.train.drop_last and not recipe.paper
    assert recipe.data.views == ("moco_v2" if recipe.method == "moco_v2" else "byol")


def test_cifar() -> None:
    two, three = find_recipe("cifar100_lt_moco_v2"), find_recipe("cifar100_lt_moco_v3")
    assert (two.train.batch_size, three.train.batch_size) == (256, 512)
    for recipe in (two, three):
        assert (recipe.model, recipe.train.epochs) == ("resnet18_small", 200)
    images = IMAGES["cifar100", 100.0]
    assert two.train.in_updates(images // 256).updates == 8_400
    assert three.schedule.warmup == 10 * (images // 512)
    assert two.hyper.queue % (2 * 256) == 0, "both streams of a batch enter the queue whole"
    assert three.optim.lr * three.optim.trust == pytest.approx(0.012)
    assert (two.hyper.norm_parts, two.train.sync_norm) == (8, False)


@pytest.mark.parametrize("name", ["cifar100_lt_moco_v3", "my_folder_moco_v3"])
def test_moco_v3_normalises_by_the_whole_batch_on_any_number_of_ranks(name: str) -> None:
    assert find_recipe(name).train.sync_norm


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 250}, "a multiple of 8"),
        ({"batch_size": 256, "accumulate": 5}, "a multiple of 40"),
        ({"drop_last": False}, "train.drop-last"),
        ({"sync_norm": True}, "train.sync-norm normalises a batch as a whole"),
    ],
)
def test_batches_that_have_no_parts_are_refused(changes: dict[str, Any], words: str) -> None:
    recipe = find_recipe("cifar100_lt_moco_v2")
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **changes))
    dataclasses.replace(
        recipe,
        hyper=dataclasses.replace(recipe.hyper, norm_parts=1),
        train=dataclasses.replace(recipe.train, **changes),
    )


@pytest.mark.parametrize(("name", "start"), ON_FEATURES.items())
def test_what_is_measured_on_features(name: str, start: str) -> None:
    recipe, learnt = find_recipe(name), find_recipe(start)
    data = recipe.data
    assert isinstance(data, LongTailConfig) and isinstance(learnt.data, ContrastConfig)
    assert (data.sampler, data.scores, recipe.model) == ("class_balanced", "both", learnt.model)
    same = ("name", "ratio", "seed", "size")
    assert all(getattr(data, key) == getattr(learnt.data, key) for key in same)
    if recipe.method == "knn":
        assert recipe.train.updates == 1 and not recipe.train.epochs
        assert recipe.hyper.neighbours == learnt.hyper.neighbours, "as while it was learnt"
        assert data.views == learnt.data.views
    else:
        assert recipe.train.eval_epochs == 1 and recipe.train.epochs > 1
        assert recipe.optim.weight_decay == 0 and data.views == "none"
        assert recipe.hyper.probe_scale == "unit"
    assert with_arm(recipe, "random_weights").start == ""


def test_weights_of_a_file_in_the_place_of_a_run() -> None:
    recipe = dataclasses.replace(find_recipe("my_folder_probe"), start="", weights="timm")
    assert with_arm(recipe, "baseline").weights == "timm"
    with pytest.raises(ValueError, match=r"of a run .* or of a file"):
        dataclasses.replace(find_recipe("my_folder_probe"), weights="timm")
