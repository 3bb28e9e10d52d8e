"""The benchmark of the layer names its candidates and measures each."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench import attention
from batchformer.lab.bench.attention import CPU_SIZES, GPU_SIZES, STOCK, Layer, measure
from batchformer.lab.bench.measure import BenchSettings, Spread
from batchformer.nn.attention import Path

ONCE = BenchSettings(torch.device("cpu"), repeats=1)


def test_a_small_measurement() -> None:
    table = measure(ONCE, ((8, 8), (16, 8)))
    names = [STOCK, "batch_former (explicit)", "by fused", "by blockwise"]
    assert [row[:3] for row in table.rows] == [(n, 8, name) for n in (8, 16) for name in names]
    for stock, *others in (table.rows[:4], table.rows[4:]):
        assert isinstance(stock[3], Spread) and stock[3].median > 0 and stock[4] is None
        for row in others:
            ratio = stock[3].median / row[3].median  # type: ignore[union-attr]
            assert row[4].median == pytest.approx(ratio)  # type: ignore[union-attr]
    assert table.environment["dtype"] == "float32"


def test_large_sizes_leave_the_other_paths_to_a_full_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "OWN_PATH_ALONE", 64)
    assert len(measure(ONCE, ((8, 8),)).rows) == 2
    full = BenchSettings(torch.device("cpu"), full=True, repeats=1)
    assert len(measure(full, ((8, 8),)).rows) == 4


def test_an_error_leaves_the_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Layer.forward_by

    def broken(self: Layer, path: Path) -> torch.Tensor:
        if len(self.x) == 8:
            raise RuntimeError("not today")
        return original(self, path)

    monkeypatch.setattr(Layer, "forward_by", broken)
    table = measure(ONCE, ((8, 8), (16, 8)))
    assert [row[0] for row in table.rows] == [8, 8, 16, 16, 16, 16]
    assert sum("at N 8 x C 8 was not measured: not today" in note for note in table.notes) == 2


def test_the_grids() -> None:
    assert len(CPU_SIZES) == 12 and (2048, 2048) in CPU_SIZES
    assert (16384, 2048) in GPU_SIZES and (128, 64) in GPU_SIZES
