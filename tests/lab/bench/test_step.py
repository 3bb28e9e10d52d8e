"""The step is measured with and without BatchFormer, in the modes that a device has."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench import step
from batchformer.lab.bench.measure import BenchSettings, Spread, Timing
from batchformer.lab.bench.step import (
    COMPILED,
    EAGER,
    HALF,
    RECORDED,
    RESNET32,
    WITHOUT_KERNELS,
    Mode,
    Subject,
    cases,
    measure,
)
from batchformer.lab.config.training import TrainConfig


def test_the_modes() -> None:
    assert cases(on_gpu=False, full=True) == [(RESNET32, 32, (EAGER,))]
    quick = cases(on_gpu=True, full=False)
    assert [(network.name, size) for network, size, _ in quick] == [
        ("resnet32", 128),
        ("resnet50", 256),
    ]
    assert all(modes[0] is EAGER and COMPILED not in modes for _, _, modes in quick)
    full = {size: modes for _, size, modes in cases(on_gpu=True, full=True)}
    assert set(full[512]) == {EAGER, HALF, RECORDED, WITHOUT_KERNELS, COMPILED}
    assert RECORDED.train.capture and not HALF.train.capture and COMPILED.train.compile
    assert RECORDED.kernels and not WITHOUT_KERNELS.kernels


def test_a_small_measurement() -> None:
    once = BenchSettings(torch.device("cpu"), repeats=1)
    slow = Mode("accumulated", TrainConfig(batch_size=4, accumulate=2, capture=False))
    table = measure(once, [(RESNET32, 4, (EAGER, slow))])
    assert [row[:3] for row in table.rows] == [
        ("ResNet-32", 4, "eager fp32"),
        ("ResNet-32", 4, "accumulated"),
    ]
    for row in table.rows:
        plain, both, rate, _, share = row[3:]
        assert isinstance(plain, Spread) and isinstance(both, Spread)
        assert isinstance(rate, Spread) and rate.median == pytest.approx(4000 / both.median)
        expected = 100 * (1 - plain.median / both.median)
        assert isinstance(share, Spread) and share.median == pytest.approx(expected)
    first, second = table.rows
    assert first[6] is None
    speed_up = first[4].median / second[4].median  # type: ignore[union-attr]
    assert second[6].median == pytest.approx(speed_up)  # type: ignore[union-attr]


def test_a_mode_that_fails_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Subject.warm_up

    def broken(self: Subject) -> None:
        if self.mode.name == "broken":
            raise RuntimeError("no such kernel")
        original(self)

    monkeypatch.setattr(Subject, "warm_up", broken)
    once = BenchSettings(torch.device("cpu"), repeats=1)
    modes = (EAGER, Mode("broken", TrainConfig(capture=False)))
    table = measure(once, [(RESNET32, 2, modes)])
    assert [row[2] for row in table.rows] == ["eager fp32"]
    assert sum("broken with" in note and "no such kernel" in note for note in table.notes) == 2


def test_the_share_is_paired() -> None:
    with_it, without = Timing((2.0, 4.0), (1.0, 1.0)), Timing((1.5, 3.0), (1.0, 1.0))
    assert step.shares(with_it, without) == [25.0, 25.0]
