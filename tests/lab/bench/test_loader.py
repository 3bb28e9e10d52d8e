"""The benchmark of the loader measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from batchformer.lab.bench import loader
from batchformer.lab.bench.loader import (
    BATCHES,
    FULL_BATCHES,
    FULL_REPEATS,
    HEIGHT,
    WIDTH,
    make_photographs,
    measure,
)
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Spread


def test_photographs_are_as_heavy_as_real_ones(tmp_path: Path) -> None:
    assert 60 < make_photographs(tmp_path, 5) < 120
    found = sorted(tmp_path.rglob("*.jpg"))
    assert [file.parent.name for file in found] == [f"class_{c}" for c in (0, 0, 1, 2, 3)]
    with Image.open(found[0]) as first:
        assert first.size == (WIDTH, HEIGHT)
    assert len({file.read_bytes() for file in found}) == 5


def test_a_small_measurement() -> None:
    once = BenchSettings(torch.device("cpu"), repeats=1)
    plain, ours = measure(once, images=8, batch_size=2, batches=3, workers=1, size=32).rows
    assert isinstance(plain[1], Spread) and isinstance(ours[1], Spread)
    ratio = ours[1].median / plain[1].median
    assert plain[1].median > 0 and plain[2] is None
    assert ours[2] == Spread(pytest.approx(ratio), pytest.approx(ratio), pytest.approx(ratio), 1)  # type: ignore[arg-type]


def test_rates_count_images_and_ratios_are_of_the_same_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def seconds(stream: object, batches: int, ahead: int) -> float:
        asked.append(batches)
        return 2.0 if len(asked) % 4 in (0, 3) else 1.0  # each second round is slower for both

    monkeypatch.setattr(loader, "_seconds", seconds)
    settings = BenchSettings(torch.device("cpu"), repeats=2)
    table = measure(settings, images=2, batch_size=32)
    assert [row[1].median for row in table.rows] == [32 * BATCHES * 3 / 4] * 2  # type: ignore[union-attr]
    assert table.rows[1][2] == Spread(1.0, 1.0, 1.0, 2) and asked == [BATCHES] * 6
    assert "batches of 32, 2 worker" in table.notes[0]
    asked.clear()
    measure(BenchSettings(torch.device("cpu"), full=True), images=2)
    assert asked == [FULL_BATCHES] * 2 * (FULL_REPEATS + 1)
