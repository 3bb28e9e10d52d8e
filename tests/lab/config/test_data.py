"""Which data a task uses: every family has its class, and values that make no sense are refused."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from batchformer.lab.config.data import (
    BY_TASK,
    ContrastConfig,
    DataConfig,
    DetectionConfig,
    DomainConfig,
    FeatureConfig,
    LongTailConfig,
    PairConfig,
)
from batchformer.lab.recipes import RECIPES, find_recipe

FOLDER = {"name": "folder", "augment": "jitter"}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (DetectionConfig, {"precise_norm": -1}, "data.precise-norm is -1, below 0"),
    (DetectionConfig, {"trained_on": ()}, "names no list of images"),
    (DetectionConfig, {"scored_on": ()}, "names no list of images"),
    (
        DetectionConfig,
        {"trained_on": ("trainval",)},
        "'trainval' is no list of images; write it as 2007/",
    ),
    (DetectionConfig, {"scored_on": ("2007/Main/test",)}, "'2007/Main/test' is no list of images"),
    (DetectionConfig, {"scored_on": ("/test",)}, "'/test' is no list of images"),
    (DetectionConfig, {"name": "coco"}, "'2007/trainval' is no list of images; write it as train"),
    (DetectionConfig, {"shorter": ()}, "has no length of a side"),
    (DetectionConfig, {"shorter": (480, 0)}, "has no length of a side"),
    (DetectionConfig, {"shorter_at_test": 0}, "has no length of a side"),
    (DetectionConfig, {"longest": 799}, "data.longest is 799, below data.shorter-at-test, 800"),
    (DetectionConfig, {"shorter": (1400,)}, "data.longest is 1333, below data.shorter, 1400"),
    (DetectionConfig, {"shorter_at_test": 1400}, "below data.shorter-at-test, 1400"),
    (DomainConfig, {"size": 0}, "data.size is 0"),
    (DomainConfig, {"held_out": 1.0}, "data.held-out is 1.0"),
    (DomainConfig, {"domains_in_batch": 2}, "for data.sampler domains"),
    (DomainConfig, {"epoch": 500}, "for data.sampler domains"),
    (DomainConfig, {"sampler": "domains", "epoch": -1}, "data.epoch is -1"),
    (DomainConfig, {"adapt": True}, "name it by data.target"),
    (
        DomainConfig,
        {"source": "photo"},
        r"data\.source photo is trained on alone.*--data\.target",
    ),
    (DomainConfig, {"augment": "shift"}, "for the digits"),
    (DomainConfig, {"name": "rotated_digits"}, "data.augment shift"),
    (DomainConfig, {"name": "rotated_digits", "augment": "shift", "root": "x"}, "embedded"),
    (FeatureConfig, {"batches": 0}, "data.batches is 0"),
    (FeatureConfig, {"unseen": "val"}, "by itself"),
    (PairConfig, {"size": 0}, "data.size is 0"),
    (PairConfig, {"name": "table"}, "name it: data.table"),
    (PairConfig, {"table": "x.csv"}, "for your own images, not mit_states"),
    (PairConfig, {"mask": True}, "for data.world open"),
    (PairConfig, {"replacements": ("Faux",)}, "needs WORD=OTHER"),
    (ContrastConfig, {"ratio": 0.5}, "data.ratio is 0.5, below 1"),
    (LongTailConfig, {"ratio": 0.2}, "data.ratio is 0.2, below 1"),
    (LongTailConfig, {"seed": -1}, "data.seed is -1, below 0"),
    (ContrastConfig, {"seed": -1}, "data.seed is -1, below 0"),
    (LongTailConfig, {"name": "digits", "root": "folder"}, "embedded"),
    (LongTailConfig, {"name": "digits", "profile": "step"}, "exponential profile only"),
    (LongTailConfig, {"name": "imagenet_lt"}, "augment jitter, resized, paco, simclr, deit, not"),
    (LongTailConfig, {"augment": "jitter"}, "is for image files, not cifar100"),
    (LongTailConfig, {"augment": "deit"}, "deit is for image files, not cifar100"),
    (LongTailConfig, {"train_list": "list.txt"}, "cifar100 has no lists"),
    (
        LongTailConfig,
        {"name": "imagenet", "augment": "deit", "train_list": "a"},
        "imagenet has no lists",
    ),
    (LongTailConfig, {"scored_on": "val"}, "cifar100 has no list val"),
    (LongTailConfig, {**FOLDER, "meta_from": "val"}, "folder has no list val"),
    (LongTailConfig, {**FOLDER, "size": 0}, "data.size is 0"),
    (
        LongTailConfig,
        {"name": "places_lt", "augment": "jitter", "scored_on": "val", "meta_from": "val"},
        r"also teach \(data.meta-from val\); set data.scored-on test",
    ),
]


@pytest.mark.parametrize(("kind", "settings", "words"), REFUSED)
def test_what_makes_no_sense_is_refused(kind: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**settings)


def test_what_is_at_the_edge_makes_sense() -> None:
    assert DetectionConfig(shorter=(32,), shorter_at_test=32, longest=32).longest == 32  # squares
    assert FeatureConfig(unseen="val", choose=False).of_files
    assert PairConfig(name="table", table="x.csv", world="open", mask=True).of_files
    assert DomainConfig().of_files
    assert LongTailConfig(name="places_lt", augment="simclr", scored_on="val").of_files
    assert not LongTailConfig().of_files
    assert not DomainConfig(name="rotated_digits", augment="shift").of_files


def test_every_family_has_a_class_and_a_recipe() -> None:
    assert set(BY_TASK.values()) == set(typing.get_args(DataConfig))
    recipes = [find_recipe(name) for name in RECIPES]
    assert all(type(recipe.data) is BY_TASK[recipe.task] for recipe in recipes)
    assert {recipe.task for recipe in recipes} == BY_TASK.keys()


#: Settings that both have, each with another value than its default.
SHARED: dict[str, Any] = {
    "name": "folder",
    "ratio": 20.0,
    "seed": 3,
    "root": "photos",
    "train_list": "train.csv",
    "test_list": "test.csv",
    "size": 96,
}


def test_the_labelled_images_have_every_setting_that_both_have() -> None:
    plain = dataclasses.asdict(ContrastConfig())
    assert {name for name in plain if name != "views"} == SHARED.keys()
    assert all(plain[name] != value for name, value in SHARED.items())
    images = ContrastConfig(**SHARED, views="byol").images()
    assert isinstance(images, LongTailConfig)
    assert {name: getattr(images, name) for name in SHARED} == SHARED


@pytest.mark.parametrize(
    ("name", "augment"),
    [("cifar100", "autoaugment"), ("imagenet", "resized"), ("folder", "resized")],
)
def test_their_transform_suits_where_they_lie_and_can_be_changed(name: Any, augment: str) -> None:
    config = ContrastConfig(name=name)
    assert config.images().augment == augment
    assert config.images(sampler="class_balanced").sampler == "class_balanced"
