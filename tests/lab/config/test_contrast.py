"""Images without labels are the very images that scores are measured on with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from batchformer.lab.config.data import ContrastConfig, LongTailConfig

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


def test_what_cannot_be_is_refused_when_it_is_said() -> None:
    with pytest.raises(ValueError, match=r"data.ratio is 0.5, below 1"):
        ContrastConfig(ratio=0.5)
