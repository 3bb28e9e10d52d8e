"""The facts of a split, counted by hand."""

from __future__ import annotations

import torch

from batchformer.data.images import ImageSplit, LongTailedData
from batchformer.tasks.facts import split_facts


def test_the_facts_of_a_split() -> None:
    def part(labels: list[int]) -> ImageSplit:
        images = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
        return ImageSplit(images, torch.tensor(labels))

    data = LongTailedData(part([0, 0, 0, 1]), part([0, 1]), ("a", "b"), "f" * 64, "tiny")
    assert split_facts(data) == {
        "name": "tiny",
        "split_sha256": "f" * 64,
        "train": 4,
        "test": 2,
        "largest_class": 3,
        "smallest_class": 1,
    }
