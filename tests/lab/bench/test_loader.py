"""The benchmark of the loader measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from batchformer.lab.bench.loader import HEIGHT, WIDTH, make_photographs, measure_loaders


def test_photographs_are_as_heavy_as_real_ones(tmp_path: Path) -> None:
    assert 60 < make_photographs(tmp_path, 5, classes=2) < 120
    found = sorted(tmp_path.rglob("*.jpg"))
    assert len(found) == 5 and {file.parent.name for file in found} == {"class_0", "class_1"}
    with Image.open(found[0]) as first:
        assert first.size == (WIDTH, HEIGHT)
    assert len({file.read_bytes() for file in found}) == 5


def test_a_small_measurement() -> None:
    figures = measure_loaders(1, images=8, batch_size=2, batches=3, workers=1, size=32)
    ratio = figures["ours_images_per_s"] / figures["plain_images_per_s"]
    assert figures["plain_images_per_s"] > 0 and figures["ratio"] == pytest.approx(ratio)
    assert figures["low_ratio"] == figures["high_ratio"] == figures["ratio"]
