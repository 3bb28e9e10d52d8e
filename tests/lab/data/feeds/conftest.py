"""Image files that the tests of feeds share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from batchformer.lab.data.files.image_files import ImageFiles


def write_noise(folder: Path, sizes: Sequence[tuple[int, int]], classes: int = 1) -> ImageFiles:
    """One file of noise for each (height, width), ``class0/00.png`` and so on, classes in turn."""
    draw = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        place = folder / f"class{number % classes}"
        place.mkdir(exist_ok=True)
        pixels = draw.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02d}.png")
    return ImageFiles.from_folder(folder)


@pytest.fixture(scope="session")
def noise_files() -> Callable[..., ImageFiles]:
    return write_noise
