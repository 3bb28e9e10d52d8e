"""The loader's figures as a table."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench import loader
from batchformer.lab.bench.loader import BATCHES, FULL_REPEATS, measure
from batchformer.lab.bench.measure import BenchSettings, Spread

FIGURES = {
    "plain_images_per_s": 100.0,
    "ours_images_per_s": 250.0,
    "ratio": 2.4,
    "low_ratio": 2.3,
    "high_ratio": 2.6,
    "jpeg_kilobytes": 81.6,
    "batch_size": 32,
    "workers": 2,
    "threads": 2,
}


def test_the_figures_are_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, dict[str, int]]] = []

    def fake(repeats: int, **sizes: int) -> dict[str, float]:
        asked.append((repeats, sizes))
        return FIGURES

    monkeypatch.setattr(loader, "measure_loaders", fake)
    table = measure(BenchSettings(torch.device("cpu"), repeats=5), images=8)
    measure(BenchSettings(torch.device("cpu"), full=True))
    assert asked == [(5, {"batches": BATCHES, "images": 8}), (FULL_REPEATS, {})]
    plain, ours = table.rows
    assert plain[1:] == (100.0, None) and ours[1:] == (250.0, Spread(2.4, 2.3, 2.6, 5))
    assert "82 kB" in table.notes[0] and "batches of 32, 2 worker" in table.notes[0]
