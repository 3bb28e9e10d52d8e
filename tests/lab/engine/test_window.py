"""Means, and the first loss that is not a number."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.engine.log import DivergedError, Window


def losses(a: float, b: float) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(a), "penalty": torch.tensor(b)}


def test_means_over_the_window() -> None:
    window = Window(10)
    window.add(losses(1.0, 4.0), 0.5, 8)
    window.add(losses(3.0, 2.0), 0.25, 8)
    record = window.record()
    assert record["loss"] == 2.0 and record["penalty"] == 3.0 and record["lr"] == 0.25
    assert record["samples_per_s"] > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_divergence_names_part_update_and_rate(bad: float) -> None:
    window = Window(10)
    window.add(losses(1.0, 1.0), 0.5, 8)
    window.add(losses(1.0, bad), 0.25, 8)
    window.add(losses(bad, bad), 0.125, 8)
    with pytest.raises(DivergedError, match=r"'penalty'.*at update 11, with learning rate 0.25"):
        window.table()


def test_an_interrupted_window_goes_on() -> None:
    whole, first, second = Window(0), Window(0), Window(2)
    for index in range(4):
        whole.add(losses(index, -index), 0.1 * index, 8)
        (first if index < 2 else second).add(losses(index, -index), 0.1 * index, 8)
    resumed = Window(99)
    resumed.restore(first.state())
    for index in (2, 3):
        resumed.add(losses(index, -index), 0.1 * index, 8)
    a, b = whole.record(), resumed.record()
    assert resumed.first == 0 and {k: a[k] for k in ("loss", "penalty", "lr")} == {
        k: b[k] for k in ("loss", "penalty", "lr")
    }


def test_an_empty_window_has_a_state() -> None:
    window = Window(3)
    resumed = Window()
    resumed.restore(window.state())
    assert resumed.first == 3 and not resumed.rows
    resumed.add(losses(1.0, 2.0), 0.1, 8)
    assert resumed.record()["penalty"] == 2.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_window_goes_on_with_losses_of_another_device() -> None:
    """What a checkpoint gives back lies on the CPU, what is trained on the GPU."""
    window, resumed = Window(), Window()
    window.add(losses(1.0, 2.0), 0.1, 8)
    resumed.restore(window.state())
    resumed.add({k: v.cuda() for k, v in losses(3.0, 4.0).items()}, 0.1, 8)
    assert resumed.record()["loss"] == 2.0
