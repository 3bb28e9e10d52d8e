"""Records survive crashes and rewinds, a window of losses continues, and lines are printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch

from batchformer.lab.engine.log import DivergedError, LossWindow, Progress, RunLog, read_records


def test_records_are_written_and_rewound(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step in (10, 20, 30):
        log.write("train", 0, step, {"loss": 1.0 / step})
        log.write("eval", 0, step, {"all": float(step)})
    log.close()
    with log.path.open("a") as file:
        file.write('{"kind": "train", "st')  # the process was killed here
    assert len(read_records(log.path)) == 6
    RunLog(tmp_path).rewind(20)
    kept = [(r["kind"], r["step"]) for r in map(json.loads, log.path.read_text().splitlines())]
    assert kept == [("train", 10), ("eval", 10), ("train", 20)], "the evaluation at 20 comes again"
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_nothing_written_is_no_error(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "new")
    log.rewind(0)
    log.close()
    assert read_records(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("quiet", [False, True])
def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    with Progress("demo", 100, quiet) as progress:
        progress.resume(40)
        progress.train(1, 50, 0.5, 1000.0)
        progress.evaluated(1, 50, {"all": 71.234, "few": 3.0})
        progress.note("captured")
        progress.say("a checkpoint is damaged")
    seen = capsys.readouterr()
    line = "demo: epoch 1 update 50/100 all 71.2 few 3.0 ("
    assert seen.out == "" if quiet else seen.out.startswith(line)
    assert seen.err.splitlines() == ["captured"] * (not quiet) + ["a checkpoint is damaged"]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"batchformer\[wandb\]"):
        RunLog(tmp_path, wandb_project="p")


def test_the_same_values_reach_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Run:
        logged: ClassVar[list[tuple[dict[str, float], int]]] = []
        finished = False

        def log(self, values: dict[str, float], step: int) -> None:
            self.logged.append((values, step))

        def finish(self) -> None:
            self.finished = True

    run, stand_in = Run(), ModuleType("wandb")
    stand_in.init = lambda **options: run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    log = RunLog(tmp_path, wandb_project="p")
    log.write("eval", 1, 20, {"all": 50.5})
    log.close()
    assert run.logged == [({"eval/all": 50.5}, 20)] and run.finished


# The losses since the last record.


def losses(a: float, b: float) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(a), "penalty": torch.tensor(b)}


def test_means_over_the_window() -> None:
    window = LossWindow(10)
    window.add(losses(1.0, 4.0), 0.5, 8)
    window.add(losses(3.0, 2.0), 0.25, 8)
    record = window.record()
    assert record["loss"] == 2.0 and record["penalty"] == 3.0 and record["lr"] == 0.25
    assert record["samples_per_s"] > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_divergence_names_part_update_and_rate(bad: float) -> None:
    window = LossWindow(10)
    window.add(losses(1.0, 1.0), 0.5, 8)
    window.add(losses(1.0, bad), 0.25, 8)
    window.add(losses(bad, bad), 0.125, 8)
    with pytest.raises(DivergedError, match=r"'penalty'.*at update 11, with learning rate 0.25"):
        window.table()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_window_goes_on_with_losses_of_another_device() -> None:
    """What a checkpoint gives back lies on the CPU, what is trained on the GPU."""
    window, resumed = LossWindow(), LossWindow()
    window.add(losses(1.0, 2.0), 0.1, 8)
    resumed.restore(window.state())
    resumed.add({k: v.cuda() for k, v in losses(3.0, 4.0).items()}, 0.1, 8)
    assert resumed.record()["loss"] == 2.0
