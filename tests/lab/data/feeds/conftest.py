"""Image files that the tests of feeds share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from batchformer.lab.data.files.image_files import ImageFiles
from helpers.data_files import save_noise


def write_noise(folder: Path, sizes: Sequence[tuple[int, int]], classes: int = 1) -> ImageFiles:
    """One file of noise for each (height, width), ``class0/00.png`` and so on, classes in turn."""
    draw = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        save_noise(folder / f"class{number % classes}" / f"{number:02d}.png", draw, *size)
    return ImageFiles.from_folder(folder)


@pytest.fixture(scope="session")
def noise_files() -> Callable[..., ImageFiles]:
    return write_noise
