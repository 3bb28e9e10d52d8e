"""Images a second of both sides, in the same units."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from batchformer.lab.bench import transforms
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.transforms import Pair, measure, pairs

ONCE = BenchSettings(torch.device("cpu"), repeats=1)


class Slow:
    """Takes two milliseconds for a batch, however large."""

    draws = 0

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        time.sleep(0.002)
        return x


def test_rates_and_ratios_count_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "ONE_BY_ONE", 4)
    (row,) = measure(ONCE, batch=16, chosen=[Pair("slow", Slow(), Slow(), (3, 4, 4))]).rows
    ours, one_by_one, speed_up, on_batch, batch_speed_up = (cell.median for cell in row[2:])  # type: ignore[union-attr]
    # Thousands a second; a busy machine sleeps longer than it is told.
    assert 16 / 2 / 4 < ours < 16 / 2 * 1.1
    assert 1 / 2 / 4 < one_by_one < 1 / 2 * 1.1
    assert speed_up == pytest.approx(ours / one_by_one)
    assert 16 / 2 / 4 < on_batch < 16 / 2 * 1.1
    assert batch_speed_up == pytest.approx(ours / on_batch)


def test_only_what_is_not_random_is_timed_on_batches() -> None:
    chosen = [pair for pair in pairs(16) if pair.name in ("RandomFlip", "Resize", "Normalise")]
    table = measure(ONCE, batch=4, chosen=chosen)
    timed = {row[0]: row[5] is not None for row in table.rows}
    assert timed == {"RandomFlip": False, "Resize": True, "Normalise": True}
    assert all(row[1] == 16 for row in table.rows)
