"""Both sides make the same kind of images, and are timed in the same units."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from batchformer.lab.bench import transforms
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.transforms import (
    Pair,
    measure,
    one_by_one,
    pairs,
    random_images,
    whole_batch,
)
from batchformer.lab.data import transforms as data_transforms

CPU = torch.device("cpu")
ONCE = BenchSettings(CPU, repeats=1)
ALL = pairs()


def test_rates_and_ratios_count_images(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow:
        """Takes two milliseconds for a batch, however large."""

        draws = 0

        def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
            now[0] += 0.002
            return x

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(transforms, "ONE_BY_ONE", 4)
    (row,) = measure(ONCE, batch=16, chosen=[Pair("slow", Slow(), Slow(), (3, 4, 4))]).rows
    # Thousands a second, and our speed over theirs.
    rates = [cell.median for cell in row[2:]]  # type: ignore[union-attr]
    assert rates == pytest.approx([16 / 2, 1 / 2, 16, 16 / 2, 1])


def test_only_what_is_not_random_is_timed_on_batches() -> None:
    chosen = [pair for pair in pairs() if pair.name in ("RandomFlip", "Resize", "Normalise")]
    table = measure(ONCE, batch=4, chosen=chosen)
    timed = {row[0]: row[5] is not None for row in table.rows}
    assert timed == {"RandomFlip": False, "Resize": True, "Normalise": True}
    assert all(row[1] == 32 for row in table.rows)


def test_every_transform_and_preset_is_there() -> None:
    aids = {"Compose", "Transform", "IMAGENET", "CentreCrop", "CONTRAST_SCALE"}
    assert {pair.name for pair in ALL} == set(data_transforms.__all__) - aids


@pytest.mark.parametrize("pair", ALL, ids=lambda pair: pair.name)
def test_both_sides_make_the_same_kind_of_images(pair: Pair) -> None:
    torch.manual_seed(0)
    x = random_images(64, pair.shape, CPU)
    ours, theirs = whole_batch(pair.ours, x), one_by_one(pair.theirs, x)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    unit = 1.0 if ours.is_floating_point() else 64.0
    # An erased square is never clipped at a border, a hole of Cutout is: a fifth of it is missing.
    assert abs(float(ours.float().mean() - theirs.float().mean())) < 0.2 * unit
    assert abs(float(ours.float().std() - theirs.float().std())) < 0.2 * unit


@pytest.mark.parametrize("pair", [p for p in ALL if not p.ours.draws], ids=lambda pair: pair.name)
def test_where_nothing_is_random_they_agree(pair: Pair) -> None:
    x = random_images(8, pair.shape, CPU)
    ours, theirs = whole_batch(pair.ours, x), pair.theirs(x)
    level = 1.0 / 255 / 0.2 if ours.is_floating_point() else 1.0
    assert float((ours.float() - theirs.float()).abs().max()) <= 1.01 * level
    assert torch.equal(theirs, one_by_one(pair.theirs, x))
