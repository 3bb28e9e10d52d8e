"""The data a task is told to use."""

import re

import pytest

from batchformer.lab.config.data import LongTailConfig


def test_the_default_is_the_papers_main_set() -> None:
    config = LongTailConfig()
    assert (config.name, config.ratio, config.profile) == ("cifar100", 100.0, "exponential")
    with pytest.raises(ValueError, match="below 1"):
        LongTailConfig(ratio=0.2)


def test_what_the_digits_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match="embedded"):
        LongTailConfig(name="digits", root="folder")
    with pytest.raises(ValueError, match="exponential profile only"):
        LongTailConfig(name="digits", profile="step")


def test_what_image_files_are_told() -> None:
    config = LongTailConfig(name="places_lt", augment="simclr", scored_on="val", meta_from="val")
    assert config.of_files and not LongTailConfig().of_files
    for wrong, words in (
        ({"name": "imagenet_lt"}, "has data.augment jitter, resized, paco, simclr, deit, not auto"),
        ({"augment": "jitter"}, "is for image files, not cifar100"),
        ({"train_list": "list.txt"}, "cifar100 has no lists"),
        ({"augment": "deit"}, "deit is for image files, not cifar100"),
        ({"name": "imagenet", "augment": "deit", "train_list": "a"}, "imagenet has no lists"),
        ({"scored_on": "val"}, "cifar100 has no list val"),
        ({"name": "folder", "augment": "jitter", "meta_from": "val"}, "folder has no list val"),
        ({"name": "folder", "augment": "jitter", "size": 0}, "data.size is 0"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            LongTailConfig(**wrong)
