"""The facts of a split, counted by hand."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData, class_counts
from batchformer.lab.tasks.scoring import class_sizes, split_facts


def test_the_facts_of_a_split() -> None:
    def part(labels: list[int]) -> ImageSplit:
        images = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
        return ImageSplit(images, torch.tensor(labels))

    data = LongTailedData(part([0, 0, 0, 1]), part([0, 1]), ("a", "b"), "tiny")
    assert split_facts(data) == {
        "name": "tiny",
        "split_sha256": data.split_sha256,
        "train_sha256": data.train_sha256,
        "train": 4,
        "test": 2,
        "largest_class": 3,
        "smallest_class": 1,
    }


@pytest.mark.parametrize(("ratio", "shots"), [(100, (35, 35, 30)), (200, (30, 31, 39))])
def test_the_sizes_of_cifar100_lt_in_words(ratio: int, shots: tuple[int, int, int]) -> None:
    counts = torch.tensor(class_counts(500, 100, ratio))
    line = class_sizes(counts, LongTailConfig())
    images, smallest = {100: ("10,847", 5), 200: ("9,502", 2)}[ratio]
    assert line.startswith(f"100 classes, {images} training images: 500 in the largest class, ")
    assert f" {smallest} in the smallest; " in line
    assert line.endswith("; {} many, {} medium, {} few".format(*shots))


def test_sizes_by_thirds_and_without_shots() -> None:
    counts = torch.tensor([9, 5, 4, 1])
    thirds = class_sizes(counts, LongTailConfig(shots="thirds"))
    assert thirds.endswith("; 2 many, 1 medium, 1 few (thirds by training images)")
    assert class_sizes(counts, LongTailConfig(scores="top")).endswith(" 1 in the smallest")
