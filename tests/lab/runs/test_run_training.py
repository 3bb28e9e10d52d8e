"""What a training leaves in the folder of its run, killed or not."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.log import read_records
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs import run as run_training
from batchformer.lab.runs.run import Run, restore

CPU = torch.device("cpu")


def short_run(root: Path, **train: Any) -> Run:
    recipe = demo()
    options = {"updates": 4, "eval_every": 2, "checkpoint_every": 2, **train}
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **options))
    return Run.below(root, recipe, "batchformer", 0, CPU)


def trained(run: Run) -> Evaluation:
    run.begin()
    options: dict[str, Any] = {"quiet": True, "wandb": None, "alone": True}
    steps = run_training.training_of(run, run.feed(), StopRequest(), **options)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            evaluation: Evaluation = end.value
            return evaluation


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    run = short_run(tmp_path, select_on="test")
    evaluation = trained(run)
    result = json.loads((run.folder / "result.json").read_text())
    assert result.pop("minutes") > 0
    assert result == {"metrics": evaluation.metrics, "updates": 4, "selected": "test"}
    assert (run.folder / "figures.npz").exists() and run.finished


def test_a_run_without_its_figures_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says that all is there is written last."""

    def full(*_: object) -> None:
        raise OSError("no space left")

    run = short_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_training, "write_figures", full)
        with pytest.raises(OSError, match="no space left"):
            trained(run)
    assert not run.finished
    trained(run)
    assert run.finished


COMMAND = [
    *(sys.executable, "-m", "batchformer", "train", "demo", "--arm", "batchformer"),
    *("--train.updates", "150", "--train.eval-every", "50", "--train.checkpoint-every", "10"),
    *("--device", "cpu", "--quiet", "--runs"),
]


def records(folder: Path) -> list[dict[str, Any]]:
    found = read_records(folder / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k != "samples_per_s"} for r in found]


# SIGKILL at random moments, inside writes too, is in tests/reliability.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_resumed_equals_an_unbroken_one(
    tmp_path: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*COMMAND, str(whole)], check=True, env=environment, timeout=120)

    process = subprocess.Popen([*COMMAND, str(broken)], env=environment)
    checkpoints = broken / "demo/batchformer/seed0/checkpoints"
    deadline = time.monotonic() + 60
    while not list(checkpoints.glob("0000000[2-9]0.*.pt")):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    code = process.wait(timeout=60)
    assert code in (-number, 128 + number)
    assert not (broken / "demo/batchformer/seed0/result.json").exists()

    subprocess.run([*COMMAND, str(broken)], check=True, env=environment, timeout=120)
    a, b = (root / "demo/batchformer/seed0" for root in (whole, broken))
    assert records(a) == records(b)
    results = [json.loads((folder / "result.json").read_text())["metrics"] for folder in (a, b)]
    assert results[0] == results[1]
    states = [restore(folder, CPU)[0].state_dict() for folder in (a, b)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_re_weighting_that_will_never_come_is_told_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = short_run(tmp_path)
    for method, told in (("balanced_softmax", False), ("ldam", True)):
        changed = dataclasses.replace(run.recipe, method=method)
        one = Run.below(tmp_path / method, changed, "baseline", 0, CPU)
        one.begin()
        options: dict[str, Any] = {"quiet": False, "wandb": None, "alone": True}
        for _ in run_training.training_of(one, one.feed(), StopRequest(), **options):
            pass
        assert ("re-weighting begins with epoch 160" in capsys.readouterr().err) == told
