"""Every run in a process of its own gives the results of all in one."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from batchformer.cli import main as cli
from batchformer.cli import training
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.recipes.small import demo
from batchformer.lab.recipes.sweeps import find_sweep
from batchformer.lab.runs.cluster import JobConfig
from batchformer.lab.runs.folder import recipe_from_json
from batchformer.lab.runs.launch import (
    Launch,
    visible_devices,
)
from batchformer.lab.runs.sweep import runs_of_sweep
from helpers.lab_runs import config_of, contents

UPDATES = 30
LENGTH = {"updates": UPDATES, "eval-every": UPDATES, "checkpoint-every": 4}
COMPARE = ["compare", "demo", "--quiet", "--device", "cpu", "--train.no-figures"]
COMPARE += [word for name, value in LENGTH.items() for word in (f"--train.{name}", str(value))]
JOBS = JobConfig()
FOLDERS = [f"demo/{arm}/seed0" for arm in ("baseline", "batchformer")]


def local_jobs(root: Path, seeds: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that trains by jobs, as a person gives it."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    command = [*COMPARE, "--seeds", str(seeds), "--runs", str(root)]
    command += ["--launcher", "local", "--jobs.at-once", "2"]
    monkeypatch.setattr(sys, "argv", ["batchformer", *command])
    return command


def kill_the_job(root: Path, run: str) -> None:
    """Kill the process that trains a run, once it has saved something."""
    end = time.monotonic() + 300
    while not list((root / run / "checkpoints").glob("0*.pt")) and time.monotonic() < end:
        time.sleep(0.005)
    lock = (root / run).with_name(f".{Path(run).name}.lock")
    held = f":{lock.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    holders = [line.split()[4] for line in lines if held in line]
    os.kill(int(holders[0]), signal.SIGKILL)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """Folders of each report, none of which is written: pages take longer than these runs."""
    found: list[list[Path]] = []
    monkeypatch.setattr(training, "print_report", lambda folders, *rest: found.append(folders))
    return found


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="finds a process as Linux shows it")
def test_jobs_give_what_one_process_gives_though_one_is_killed(
    tmp_path: Path,
    reported: list[list[Path]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, (other, killed) = tmp_path / "jobs", FOLDERS
    command = local_jobs(root, 1, monkeypatch)
    killer = threading.Thread(target=kill_the_job, args=(root, killed))
    killer.start()
    with pytest.raises(SystemExit) as end:
        cli.main(command)
    killer.join()
    seen = capsys.readouterr()
    assert end.value.code == 1
    assert "1 of 2 runs have not finished: demo batchformer seed 0. Repeat" in seen.err
    assert "demo batchformer seed 0: job " in seen.err and "ended without a result" in seen.err
    assert reported == [[root / other, root / killed]], "the page names what is missing"
    state = load_newest(root / killed / "checkpoints")
    assert state is not None and 0 < state["counters"]["update"] < UPDATES
    done = (root / other / "result.json").stat().st_mtime_ns

    cli.main(command)  # goes on with that one
    assert (root / other / "result.json").stat().st_mtime_ns == done
    config = config_of(root / killed)
    assert config["provenance"]["command"] == shlex.join(["batchformer", *command])

    written = {path: path.stat().st_mtime_ns for path in (root / "demo").rglob("*.*")}
    cli.main(command)  # nothing is left to do
    assert {*(root / "demo").rglob("*.*")} == {*written}
    assert reported[1:] == [[root / other, root / killed]] * 2
    assert {path: path.stat().st_mtime_ns for path in written} == written

    cli.main([*COMPARE, "--seeds", "1", "--runs", str(tmp_path / "here")])
    for run in (other, killed):
        assert contents(root / run) == contents(tmp_path / "here" / run), run


def test_a_job_has_the_whole_recipe(tmp_path: Path) -> None:
    sweep = find_sweep("demo_layers")
    launch = Launch("local", JOBS, tmp_path, sweep.name, "cpu", quiet=True)
    for run in runs_of_sweep(sweep, demo(), ("batchformer",), ("1", "2"), (0,), tmp_path):
        job = launch.job_of(run)
        assert recipe_from_json(job.recipe) == run.recipe
        assert Path(job.root) / run.recipe.name / job.arm / f"seed{job.seed}" == run.folder


def test_jobs_side_by_side_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices(torch.device("cpu")) == [None]
    assert visible_devices(torch.device("cuda")) == ["0", "1", "2"]
    assert visible_devices(torch.device("cuda:1")) == ["1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert visible_devices(torch.device("cuda")) == ["5", "7"]
    assert visible_devices(torch.device("cuda:1")) == ["7"]
