"""What a training says of its batches reaches those that are read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.framing import ResizeCentreCrop
from batchformer.lab.data.feeds.loader import FileFeed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.files.decode import DamagedImageError
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.transforms import IMAGENET, Compose, RandomFlip
from batchformer.lab.tasks.base import image_feed

CPU = torch.device("cpu")
VIEW = (ResizeCentreCrop(8, 8), Compose((RandomFlip(), IMAGENET)))


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    draw = np.random.default_rng(0)
    for number in range(7):
        place = tmp_path / f"class {number % 2}"
        place.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(
            place / f"{number}.png"
        )
    return ImageFiles.from_folder(tmp_path)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_the_training(files: ImageFiles, drop_last: bool) -> None:
    train = TrainConfig(batch_size=3, drop_last=drop_last, workers=0)
    made = image_feed(files, VIEW, train, 5, CPU, second=VIEW)
    order = Steps(Shuffle(7, seed=5), 3, drop_last)
    by_hand = FileFeed(files, *VIEW, order, 5, CPU, 0, second=VIEW)
    assert made.per_epoch == by_hand.per_epoch == (2 if drop_last else 3)
    for step in range(4):
        one, other = made.batch(step), by_hand.batch(step)
        assert one.keys() == other.keys() and "view2" in one
        assert all(torch.equal(one[name], other[name]) for name in ("x", "y", "view2"))


def test_a_damaged_file_is_treated_as_asked(files: ImageFiles) -> None:
    (files.root / files.paths[0]).write_bytes(b"no image")
    train = TrainConfig(batch_size=7, workers=0, damaged="skip")
    feed = image_feed(files, VIEW, train, 5, CPU)
    with pytest.warns(RuntimeWarning):
        assert len(feed.batch(0)["y"]) == 7
    assert [Path(name).name for name in feed.damaged] == ["0.png"]
    with pytest.raises(DamagedImageError):
        image_feed(files, VIEW, TrainConfig(batch_size=7, workers=0), 5, CPU).batch(0)
