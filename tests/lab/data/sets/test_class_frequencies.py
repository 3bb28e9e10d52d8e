"""Training lists against published numbers of every class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.long_tailed_files import require_published

COUNTS = [3, 1, 2, 1]


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    labels = torch.arange(4).repeat_interleave(torch.tensor(COUNTS))
    paths = tuple(f"{row}.jpg" for row in range(len(labels)))
    for path in paths:
        (tmp_path / path).touch()
    return ImageFiles(paths, labels, ("a", "b", "c", "d"), tmp_path)


def test_equal_numbers_and_none_at_all_pass(files: ImageFiles, tmp_path: Path) -> None:
    published = tmp_path / "freq.json"
    require_published(published, tmp_path / "train.txt", files)
    published.write_text(str(COUNTS))
    require_published(published, tmp_path / "train.txt", files)


def test_classes_that_differ_are_named_though_sum_and_extremes_agree(
    files: ImageFiles, tmp_path: Path
) -> None:
    published = tmp_path / "freq.json"
    published.write_text("[3, 2, 1, 1]")
    words = r"train\.txt and .*freq\.json disagree.* 2 of 4 classes: class 1 has 1 instead of 2, "
    with pytest.raises(ValueError, match=words + r"class 2 has 2 instead of 1\. Use"):
        require_published(published, tmp_path / "train.txt", files)


@pytest.mark.parametrize(
    ("text", "words"),
    [("[3, 1", "no complete"), ("[3, 1, 2]", "no list of 4 numbers"), ("{}", "no list of 4")],
)
def test_a_file_that_is_no_such_list_is_named(
    files: ImageFiles, tmp_path: Path, text: str, words: str
) -> None:
    published = tmp_path / "freq.json"
    published.write_text(text)
    with pytest.raises(ValueError, match=rf"freq\.json is {words}"):
        require_published(published, tmp_path / "train.txt", files)
