"""Jobs of a Slurm that only writes down what it is asked."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.interrupt import Interrupted
from batchformer.lab.runs.cluster import JobConfig
from batchformer.lab.runs.compare import runs_of_comparison
from batchformer.lab.runs.folder import RECORD, not_begun
from batchformer.lab.runs.launch import (
    Launch,
    diverged,
    submit,
    wait_for,
)
from batchformer.lab.runs.run import Run
from helpers.lab_runs import short, train_one

ARMS, SEEDS = ("baseline", "batchformer"), (0, 1)

SBATCH = """#!/bin/sh
if [ -e {folder}/refuse ]; then echo "sbatch: error: invalid partition specified" >&2; exit 1; fi
echo x >> {folder}/calls
number=$((4241 + $(wc -l < {folder}/calls)))
cp "$1" {folder}/script_$number
echo "Submitted batch job $number"
"""
SACCT = """#!/bin/sh
echo "JobID|State|NodeList"
cat {folder}/states 2> /dev/null
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Slurm's programs; ``states`` in it is what sacct answers."""
    from submitit import SlurmJob

    folder = tmp_path / "cluster"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "sacct": SACCT, "srun": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text.format(folder=folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(SlurmJob, "watcher", type(SlurmJob.watcher)(delay_s=1))
    return folder


def launch_in(root: Path, **options: Any) -> Launch:
    return Launch("slurm", JobConfig(**options), root, "demo", quiet=True)


def test_every_run_is_a_job_of_one_array(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    launch = launch_in(root, partition="gpu", at_once=2, extra=("account=mine",))
    runs = runs_of_comparison(short(), ARMS, SEEDS, root)
    submitted = submit(launch, runs)
    assert [job.job_id for _, job in submitted] == [f"4242_{i}" for i in range(4)]
    script = (cluster / "script_4242").read_text()
    asked = "--partition=gpu --array=0-3%2 --account=mine --requeue --signal=USR2@120 "
    asked += "--gpus-per-node=1 --time=240 --mem=32GB --job-name=batchformer-demo"
    for line in asked.split():
        assert f"#SBATCH {line}\n" in script, line
    out = capsys.readouterr().out
    assert "demo batchformer seed 1: job 4242_3, submitted" in out
    assert f"batchformer report {root / 'demo'} --to {root / 'demo/report.html'}" in out
    assert f"Logs: {root / 'demo/jobs'}" in out


def test_what_is_written_for_a_job_is_small_and_plain(cluster: Path, tmp_path: Path) -> None:
    runs = runs_of_comparison(short(), ARMS, SEEDS, tmp_path)
    for run, job in submit(launch_in(tmp_path), runs):
        file = Path(job.paths.submitted_pickle)
        assert file.stat().st_size < 10_000
        written = job.submission().function
        assert type(written).__name__ == "RunJob" and written.device == "cuda"
        assert (written.arm, written.seed, written.root) == (run.arm, run.seed, str(tmp_path))
        json.dumps(dataclasses.asdict(written))  # nothing but plain values


def test_a_run_is_not_submitted_twice(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = short()
    train_one(recipe, "baseline", 0, root=tmp_path)  # finished before
    runs, launch = runs_of_comparison(recipe, ARMS, SEEDS, tmp_path), launch_in(tmp_path)
    assert [job.job_id for _, job in submit(launch, runs)] == ["4242_0", "4242_1", "4242_2"]
    assert "1 of 4 runs have finished." in capsys.readouterr().out

    states = ("4242_0|RUNNING|n1", "4242_1|CANCELLED by 7|n1", "4242_[2]|PENDING|")
    (cluster / "states").write_text("\n".join(states))
    again = {run.title: job.job_id for run, job in submit(launch, runs)}
    assert again == {
        "demo batchformer seed 0": "4242_0",
        "demo baseline seed 1": "4243",
        "demo batchformer seed 1": "4242_2",
    }
    out = capsys.readouterr().out
    assert "demo baseline seed 1: job 4243, submitted" in out
    assert "demo batchformer seed 1: job 4242_2, already there" in out
    assert len((cluster / "calls").read_text().split()) == 2
    recorded = json.loads((tmp_path / "demo" / RECORD).read_text())["jobs"]
    assert recorded["baseline/seed1"]["job"] == "4243" and "baseline/seed0" not in recorded


def test_a_run_that_diverged_is_submitted_again_only_with_other_settings(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def left(recipe: Recipe) -> tuple[Run, Any]:
        (one,) = submit(launch_in(tmp_path), runs_of_comparison(recipe, ARMS[:1], (0,), tmp_path))
        return one

    run, job = left(short())
    assert not diverged(run, job)
    run.begin()
    log = "lab.log.DivergedError: The loss became nan\nsrun: error: task 0 exited with code 1\n"
    Path(job.paths.stderr).write_text(log)
    job.paths.result_pickle.touch()
    assert diverged(*left(short())) and len((cluster / "calls").read_text().split()) == 1
    assert "demo baseline seed 0: job 4242, diverged" in capsys.readouterr().out
    assert not diverged(*left(short().changed(optim={"lr": 1e-3})))
    assert "demo baseline seed 0: job 4243, submitted" in capsys.readouterr().out


def test_nothing_is_submitted_where_all_have_finished(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_one(short(), "baseline", 0, root=tmp_path)
    runs = runs_of_comparison(short(), ("baseline",), (0,), tmp_path)
    assert submit(launch_in(tmp_path), runs) == []
    assert capsys.readouterr().out == "1 of 1 runs have finished.\n"
    assert not (cluster / "calls").exists()


def test_what_cannot_be_trained_is_refused_before_it_is_queued(
    cluster: Path, tmp_path: Path
) -> None:
    started = short().changed(start="digits_recognition/baseline")
    runs = runs_of_comparison(started, ARMS, SEEDS, tmp_path)
    words = r"needs the network of (digits_recognition)/baseline seed0.*batchformer train \1 --arm"
    with pytest.raises(FileNotFoundError, match=words):
        submit(launch_in(tmp_path), runs)
    train_one(short(), "baseline", 0, root=tmp_path)
    with pytest.raises(ValueError, match=r"train\.updates was 6, is 5"):
        submit(launch_in(tmp_path), runs_of_comparison(short(updates=5), ARMS, SEEDS, tmp_path))
    assert not (cluster / "calls").exists()


def test_a_refusal_of_slurm_is_told(cluster: Path, tmp_path: Path) -> None:
    (cluster / "refuse").touch()
    runs = runs_of_comparison(short(), ARMS, SEEDS, tmp_path)
    with pytest.raises(ValueError, match=r"Slurm did not take the jobs: .*invalid partition"):
        submit(launch_in(tmp_path), runs)
    assert not (tmp_path / "demo" / RECORD).exists()


def finish(run: Run) -> None:
    run.folder.mkdir(parents=True)
    (run.folder / "result.json").write_text('{"metrics": {}}')


def test_waiting_ends_with_the_last_job(
    cluster: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchformer.lab.runs.launch.FILE_DELAY_S", 0.1)
    runs = runs_of_comparison(short(), ARMS, (0,), tmp_path)
    submitted = submit(launch_in(tmp_path), runs)
    finish(runs[0])
    submitted[0][1].paths.result_pickle.touch()
    Path(submitted[1][1].paths.stderr).write_text("Traceback\nMemoryError: too much\n")
    (cluster / "states").write_text("4242_1|FAILED|n1")
    wait_for(submitted, every=0.01)
    seen = capsys.readouterr()
    assert "demo baseline seed 0: finished" in seen.out
    assert "seed 0: job 4242_1 ended without a result: MemoryError: too much (log:" in seen.err


def test_who_stops_waiting_stops_no_job(cluster: Path, tmp_path: Path) -> None:
    submitted = submit(launch_in(tmp_path), runs_of_comparison(short(), ARMS, (0,), tmp_path))
    (cluster / "states").write_text("4242_[0-1]|PENDING|")
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(Interrupted, match="No longer waiting for 2 jobs, which continue"):
        wait_for(submitted, every=0.05)
    timer.join()


def test_runs_that_have_not_begun_are_named(cluster: Path, tmp_path: Path) -> None:
    runs = runs_of_comparison(short(), ARMS, (0,), tmp_path)
    submit(launch_in(tmp_path), runs)
    runs[0].begin()
    expected = [f"{tmp_path / 'demo/batchformer/seed0'} (job 4242_1)"]
    assert not_begun(tmp_path) == not_begun(tmp_path / "demo") == expected
    assert not_begun(tmp_path / "demo/baseline") == []
