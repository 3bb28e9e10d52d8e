"""Schedules in epochs, by the formulas of the code they come from."""

from __future__ import annotations

import pytest

from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes.shared import in_epochs, warm_up_and_drop


def published(epoch: int, warmup: int, milestones: tuple[int, ...], gamma: float) -> float:
    """LDAM's, RIDE's and PaCo's rule on an epoch counted from 0."""
    rate = 1.0
    for milestone in milestones:
        rate *= gamma if epoch >= milestone else 1.0
    return rate * (epoch + 1) / warmup if epoch < warmup else rate


@pytest.mark.parametrize(
    ("warmup", "milestones", "gamma", "epochs"),
    [(5, (160, 180), 0.01, 200), (10, (320, 360), 0.1, 400)],
)
def test_rates_by_epoch(
    warmup: int, milestones: tuple[int, ...], gamma: float, epochs: int
) -> None:
    schedule = warm_up_and_drop(warmup, milestones, gamma)
    for epoch in range(epochs):
        expected = published(epoch, warmup, milestones, gamma)
        for update in (7 * epoch, 7 * epoch + 6):
            got = lr_factor(schedule, update, 7 * epochs, 7)
            assert got == pytest.approx(expected, rel=1e-9), epoch


def test_lengths() -> None:
    kept = in_epochs(10_847, 200, 128, evaluations=10)
    assert (kept.updates, kept.eval_every, kept.drop_last) == (200 * 85, 20 * 85, False)
    dropped = in_epochs(9_502, 400, 128, evaluations=10, drop_last=True)
    assert (dropped.updates, dropped.eval_every, dropped.drop_last) == (400 * 74, 40 * 74, True)
