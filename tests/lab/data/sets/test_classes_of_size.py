"""Some classes of a long tail alone, by their number of training images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData, only_classes
from batchformer.lab.data.sets.long_tailed_files import LongTailedFiles
from batchformer.lab.runs.source_runs import training_hash
from batchformer.lab.tasks.base import split_facts
from helpers.data_files import touch

LABELS = torch.tensor([3, 0, 0, 2, 0, 0, 2, 3, 1, 0])  # 5, 1, 2 and 2 images


def images(labels: torch.Tensor) -> ImageSplit:
    """Each image has its position as its only value."""
    return ImageSplit(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), labels)


def whole() -> LongTailedData:
    return LongTailedData(images(LABELS), images(torch.arange(4)), tuple("abcd"), "toy")


def test_images_in_memory_are_numbered_anew() -> None:
    part = only_classes(whole(), 2, 4)
    assert part.classes == ("c", "d") and part.name == "toy_of_2_to_4"
    assert part.train.x.flatten().tolist() == [0, 3, 6, 7]
    assert part.train.labels.tolist() == [1, 0, 0, 1]
    assert part.test.x.flatten().tolist() == [2, 3] and part.test.labels.tolist() == [0, 1]
    assert only_classes(whole(), 2, 0).classes == ("a", "c", "d"), "0 is no bound"


def test_files_as_images_in_memory(tmp_path: Path) -> None:
    paths = tuple(f"{row}.png" for row in range(len(LABELS)))
    touch(tmp_path, *paths)
    files = ImageFiles(paths, LABELS, ("x", "x", "y", "x"), tmp_path)  # names may repeat
    test = files.subset(torch.tensor([8, 3, 0]))
    part = only_classes(LongTailedFiles(files, test, files.classes, "toy", val=test), 2, 4)
    assert part.classes == ("y", "x") and part.train.paths == ("0.png", "3.png", "6.png", "7.png")
    assert part.train.labels.tolist() == [1, 0, 0, 1]
    assert part.test.paths == ("3.png", "0.png") and part.test.labels.tolist() == [0, 1]
    assert part.val is not None and part.val.paths == part.test.paths


def test_a_run_on_the_whole_accepts_the_network_of_a_part() -> None:
    data = whole()
    assert only_classes(data, 0, 0) is data and "part_of_sha256" not in split_facts(data)
    part = split_facts(only_classes(data, 0, 2))
    assert part["train_sha256"] != data.train.sha256
    assert training_hash(part) == training_hash(split_facts(data)) == data.train.sha256


def test_bounds_that_no_class_meets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no class has 6 to 9 .*they have 1 to 5\. Set other"):
        only_classes(whole(), 6, 9)
    with pytest.raises(ValueError, match=r"data\.max-images is 3, below data\.min-images 5"):
        LongTailConfig(min_images=5, max_images=3)
    with pytest.raises(ValueError, match=r"data\.per-turn 4 is for data\.sampler class_balanced"):
        LongTailConfig(per_turn=4)


def test_the_classes_are_named_in_lists() -> None:
    assert LongTailConfig(min_images=21, max_images=99).words().endswith(", 21-99")
    assert LongTailConfig(min_images=100).words().endswith(", 100+")
    assert LongTailConfig(max_images=20).words().endswith(", 1-20")
    assert LongTailConfig().words() == "cifar100 r=100"
