"""How time and memory of a layer grow with the batch, and the exponent that is fitted to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batchformer.lab.bench.growth import measure
from batchformer.lab.bench.measure import BenchSettings


def test_growth_measured() -> None:
    settings = BenchSettings(torch.device("cpu"), repeats=1)
    table = measure(settings, sizes=(64, 128, 256, 512), channels=8)
    assert [row[0] for row in table.rows] == [64, 128, 256, 512, "exponent"]
    upper = table.rows[2:4]
    assert "from 256 to 512" in table.notes[-1]
    for column in (4, 5):  # bytes saved: quadratic in N, since C is small
        ratio = upper[1][column] / upper[0][column]  # type: ignore[operator]
        assert table.rows[-1][column] == pytest.approx(np.log2(ratio)) and 3.5 < ratio < 4
    for row in table.rows[:4]:
        stock, ours, speed_up = (cell.median for cell in row[1:4])  # type: ignore[union-attr]
        assert speed_up == pytest.approx(stock / ours) and min(stock, ours) > 0


def test_few_sizes_have_no_exponent() -> None:
    settings = BenchSettings(torch.device("cpu"), repeats=1)
    assert len(measure(settings, sizes=(8, 16), channels=8).rows) == 2
