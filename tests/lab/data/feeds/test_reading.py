"""A batch is read as requested, and what cannot be read is replaced from the batch."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.data.feeds.framing import RandomResizedCrop
from batchformer.lab.data.feeds.workers import ImageReader, ImageRequest
from batchformer.lab.data.files.decode import DamagedImageError, decode

GEOMETRY = RandomResizedCrop(16)
PATHS = [f"{number}.png" for number in range(5)]
SAMPLES = [40, 10, 30, 20, 0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for number, path in enumerate(PATHS):
        pixels = draw.integers(0, 256, (20 + number, 31 - number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / path)
    return tmp_path


def request() -> ImageRequest:
    u = np.random.default_rng(1).random((5, GEOMETRY.draws))
    return ImageRequest(SAMPLES, PATHS, u, 5)


def expected(root: Path, taken: list[int]) -> Tensor:
    rows = zip(taken, torch.from_numpy(request().u), strict=True)
    return torch.stack([GEOMETRY(decode(root / PATHS[row]), u) for row, u in rows])


def test_a_batch(root: Path) -> None:
    read = ImageReader(root, GEOMETRY)(request())
    assert torch.equal(read.x, expected(root, [0, 1, 2, 3, 4]))
    assert read.samples.tolist() == SAMPLES and read.samples.dtype == torch.int64
    assert read.replaced == [] and read.total == 5


@pytest.mark.parametrize(
    ("damaged", "taken"),
    [
        ([1], [0, 2, 2, 3, 4]),
        ([1, 2], [0, 3, 3, 3, 4]),
        ([4], [0, 1, 2, 3, 0]),
        ([0, 3, 4], [1, 1, 2, 1, 1]),
    ],
)
def test_the_next_readable_one_takes_the_place(
    root: Path, damaged: list[int], taken: list[int]
) -> None:
    for row in damaged:
        (root / PATHS[row]).write_text("no image")
    read = ImageReader(root, GEOMETRY, "skip")(request())
    assert read.samples.tolist() == [SAMPLES[row] for row in taken]
    assert torch.equal(read.x, expected(root, taken)), "each place keeps its own random numbers"
    assert [path for path, _ in read.replaced] == [PATHS[row] for row in damaged]
    assert all(PATHS[row] in words for row, (_, words) in zip(damaged, read.replaced, strict=True))


def test_a_missing_file_is_replaced_too(root: Path) -> None:
    (root / PATHS[2]).unlink()
    read = ImageReader(root, GEOMETRY, "skip")(request())
    assert read.samples.tolist() == [40, 10, 20, 20, 0] and "2.png" in read.replaced[0][1]


def test_by_default_the_error_is_raised(root: Path) -> None:
    (root / PATHS[2]).write_text("no image")
    with pytest.raises(DamagedImageError, match=r"2\.png"):
        ImageReader(root, GEOMETRY)(request())
    (root / PATHS[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.png"):
        ImageReader(root, GEOMETRY)(request())


def test_a_choice_that_is_none(root: Path) -> None:
    with pytest.raises(ValueError, match="must be 'raise' or 'skip', got 'drop'"):
        ImageReader(root, GEOMETRY, "drop")  # type: ignore[arg-type]


def test_a_batch_without_a_readable_image_is_an_error(root: Path) -> None:
    for path in PATHS:
        (root / path).write_text("no image")
    with pytest.raises(DamagedImageError, match=r"none of the 5 images .* first: .*0\.png"):
        ImageReader(root, GEOMETRY, "skip")(request())


@dataclass(frozen=True)
class Wrong:
    """A geometry that fails, or gives something else than it says."""

    fails: bool
    size: int = 16
    draws: ClassVar[int] = 22

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        if self.fails:
            raise ArithmeticError("no such window")
        return image[:, :2, :2]


@pytest.mark.parametrize(
    ("fails", "reason"), [(True, "no such window"), (False, r"uint8 of shape \(3, 2, 2\)")]
)
def test_a_geometry_that_fails_is_told_with_the_file(root: Path, fails: bool, reason: str) -> None:
    with pytest.raises(RuntimeError, match=rf"0\.png: Wrong.* image \(3, 20, 31\) .*{reason}"):
        ImageReader(root, Wrong(fails), "skip")(request())


def test_reader_and_request_reach_a_process_of_any_kind(root: Path) -> None:
    reader, work = pickle.loads(pickle.dumps((ImageReader(root, GEOMETRY), request())))
    assert torch.equal(reader(work).x, ImageReader(root, GEOMETRY)(request()).x)
