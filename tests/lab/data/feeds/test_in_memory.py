"""Files are read once, in order, resized or as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from batchformer.lab.data.feeds import memory
from batchformer.lab.data.feeds.framing import RandomResizedCrop, ResizeWhole
from batchformer.lab.data.feeds.memory import common_side, read_all
from batchformer.lab.data.files.decode import DamagedImageError, decode
from batchformer.lab.data.files.image_files import ImageFiles

IMAGES = 7


def write(folder: Path, number: int, height: int, width: int, kind: str = "png") -> Path:
    draw = np.random.default_rng(number)
    place = folder / f"class{number % 3}"
    place.mkdir(exist_ok=True)
    file = place / f"{number}.{kind}"
    Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)
    return file


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    for number in range(IMAGES):
        write(tmp_path, number, 12, 12)
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_resized_in_order(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "READ", 3)
    for number in range(IMAGES):
        write(tmp_path, number, 20 + number, 30)
    files = ImageFiles.from_folder(tmp_path)
    split = read_all(files, ResizeWhole(9), workers)
    assert split.x.shape == (IMAGES, 3, 9, 9) and split.x.dtype == torch.uint8
    assert torch.equal(split.y, files.labels)
    resize = v2.Resize((9, 9), antialias=True)
    for path, image in zip(files.paths, split.x, strict=True):
        assert torch.equal(image, resize(decode(tmp_path / path)))


def test_images_of_one_size_are_kept_as_they_are(squares: Path) -> None:
    files = ImageFiles.from_folder(squares)
    split = read_all(files, None, workers=0)
    assert split.x.shape == (IMAGES, 3, 12, 12)
    for path, image in zip(files.paths, split.x, strict=True):
        pixels = np.asarray(Image.open(squares / path))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels)


def test_the_first_image_of_another_size_is_named(squares: Path) -> None:
    write(squares, 4, 12, 13)
    write(squares, 2, 14, 14)
    files = ImageFiles.from_folder(squares)
    with pytest.raises(ValueError, match=r"class1/4.png is 12 x 13, but class0/0.png is 12 x 12"):
        read_all(files, None, workers=0)
    with pytest.raises(
        ValueError, match=r"Leave data\.memory off, or resize the images to squares"
    ):
        common_side(files)


def test_images_that_are_no_squares(tmp_path: Path) -> None:
    write(tmp_path, 0, 8, 9)
    with pytest.raises(ValueError, match=r"0.png is 8 x 9, no square\. Leave data\.memory off"):
        common_side(ImageFiles.from_folder(tmp_path))


def test_sizes_are_those_of_upright_images(tmp_path: Path) -> None:
    file = write(tmp_path, 0, 8, 9, kind="jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(file).save(file, exif=exif)
    assert tuple(decode(file).shape) == (3, 9, 8)
    with pytest.raises(ValueError, match=r"is 9 x 8, no square"):
        common_side(ImageFiles.from_folder(tmp_path))


def test_damaged_and_absent_images(squares: Path) -> None:
    files = ImageFiles.from_folder(squares)
    (squares / "class0/3.png").write_bytes(b"no image")
    with pytest.raises(DamagedImageError, match=r"class0/3.png cannot be decoded"):
        common_side(files)
    none = ImageFiles((), torch.empty(0, dtype=torch.int64), ("a",), squares)
    with pytest.raises(ValueError, match="name a part with images"):
        common_side(none)


def test_nothing_is_random(squares: Path) -> None:
    with pytest.raises(ValueError, match="the geometry draws"):
        read_all(ImageFiles.from_folder(squares), RandomResizedCrop(8), workers=0)
