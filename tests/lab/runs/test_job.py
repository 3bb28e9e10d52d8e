"""A job that is told to stop saves first; nobody else trains its run meanwhile."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.interrupt import Interrupted, stop_requests
from batchformer.lab.runs import compare, job
from batchformer.lab.runs.folder import recipe_to_json
from batchformer.lab.runs.job import RunJob, StopSignals, warning_signal
from helpers.lab_runs import config_of, contents, held_by_another, short, train_one

#: So many that a signal comes before the last.
UPDATES = 150


def job_in(root: Path, recipe: Recipe) -> RunJob:
    return RunJob(
        recipe_to_json(recipe), "batchformer", 0, str(root), "cpu", True, ("compare", "demo")
    )


@pytest.fixture(autouse=True)
def own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))  # a job sets them


@pytest.fixture
def submitits_handler() -> Iterator[list[int]]:
    """Signals that reach the handler which submitit would have installed."""
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, frame: heard.append(number))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_job_trains_its_run_and_finds_it_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as submitit leaves it
    one = dataclasses.replace(job_in(tmp_path, short()), visible="3")
    one()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3", "the GPU that was chosen for it"
    folder = tmp_path / "demo/batchformer/seed0"
    before = (folder / "result.json").stat().st_mtime_ns
    one()
    assert (folder / "result.json").stat().st_mtime_ns == before
    config = config_of(folder)
    assert config["provenance"]["command"] == "batchformer compare demo"
    assert config["recipe"] == recipe_to_json(short())


def listening(seconds: float = 5) -> int | None:
    """A training that looks between updates whether it is asked to stop."""
    with stop_requests() as request:
        end = time.monotonic() + seconds
        while request.signal_number is None and time.monotonic() < end:
            time.sleep(0.02)
    return request.signal_number


def test_a_warning_asks_the_training_to_save(submitits_handler: list[int]) -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGUSR2)
        assert signals.queue_again and listening() == signal.SIGTERM
    assert submitits_handler == []
    signal.raise_signal(signal.SIGUSR2)
    assert submitits_handler == [signal.SIGUSR2]


def test_a_warning_after_a_request_to_end_does_not_break_into_the_saving(
    submitits_handler: list[int],
) -> None:
    with StopSignals() as signals, stop_requests() as request:
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM):
            signal.raise_signal(number)
            time.sleep(0.05)
        assert request.signal_number == signal.SIGTERM and signals.queue_again
    assert submitits_handler == []


def test_work_that_does_not_listen_is_stopped_when_the_time_is_up(
    submitits_handler: list[int],
) -> None:
    started = time.monotonic()
    with pytest.raises(Interrupted, match="saved before"), StopSignals(grace=0.2) as signals:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(60)
    assert 0.2 < time.monotonic() - started < 60 and not signals.queue_again
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "no alarm comes after"


def test_processes_that_read_data_do_not_answer(submitits_handler: list[int]) -> None:
    with StopSignals(grace=0.0) as signals:
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGUSR2)
            os._exit(int(signals.queue_again))
        assert os.waitpid(child, 0)[1] == 0


def test_the_signal_is_the_one_that_submitit_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warning_signal() == signal.SIGUSR2
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", "HUP")
    assert warning_signal() == signal.SIGHUP


@pytest.mark.parametrize(
    ("executor", "asked", "heard", "waits"),
    [
        ("local", signal.SIGTERM, [], False),
        ("slurm", signal.SIGTERM, [], True),  # to be queued again, or killed
        ("slurm", signal.SIGUSR2, [signal.SIGUSR2], True),
    ],
)
def test_what_a_job_does_when_it_has_saved(
    executor: str,
    asked: signal.Signals,
    heard: list[int],
    waits: bool,
    tmp_path: Path,
    submitits_handler: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Submitit's handler ends the process; this one only notes that it was called."""
    waited: list[float] = []

    def stopped(*recipe: object, **options: object) -> None:
        signal.raise_signal(asked)
        number = listening()
        assert number is not None
        raise Interrupted(number, "stopped and saved")

    monkeypatch.setattr(compare, "run", stopped)
    monkeypatch.setenv("SUBMITIT_EXECUTOR", executor)
    monkeypatch.setattr(job, "REQUEUE_WAIT_S", 0.01)
    sleep = time.sleep

    def noted(seconds: float) -> None:
        waited.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    with pytest.raises(SystemExit) as end:
        job_in(tmp_path, short())()
    assert end.value.code == 128 + signal.SIGTERM and submitits_handler == heard
    assert (waited[-1] == 0.01) == waits


def test_a_job_waits_for_who_trains_its_run_and_not_for_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, folder = job_in(tmp_path, short()), tmp_path / "demo/batchformer/seed0"
    with held_by_another(folder.with_name(".seed0.lock")) as other:
        threading.Timer(0.5, other.kill).start()
        one()
    assert f"{folder} is being trained by another process: waiting" in capfd.readouterr().err
    assert (folder / "result.json").exists()


SCONTROL = '#!/bin/sh\necho "$@" >> {folder}/asked\n'


def test_a_job_that_slurm_stops_is_saved_queued_and_goes_on(tmp_path: Path) -> None:
    """As on a cluster, but for the queue: what it does there a program writes down."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    options = {"updates": UPDATES, "eval_every": UPDATES, "log_every": 1}
    recipe, root, jobs = short(**options), tmp_path / "runs", tmp_path / "jobs"
    jobs.mkdir()
    (tmp_path / "scontrol").write_text(SCONTROL.format(folder=tmp_path))
    (tmp_path / "scontrol").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SUBMITIT_EXECUTOR": "slurm",
        "SLURM_JOB_ID": "77",
        "SLURM_ARRAY_JOB_ID": "76",
        "SLURM_ARRAY_TASK_ID": "1",
    }
    paths = JobPaths(jobs, "76_1")
    submission = DelayedSubmission(job_in(root, recipe))
    submission.set_timeout(timeout_min=240, max_num_timeout=3)
    submission.dump(paths.submitted_pickle)
    command = [sys.executable, "-m", "submitit.core._submit", str(jobs)]
    folder = root / "demo/batchformer/seed0"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + 300
        while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
            assert process.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)  # for another job: both, one after the other
        process.send_signal(signal.SIGUSR2)
        assert process.wait(120) == 255
    assert (tmp_path / "asked").read_text() == "requeue 76_1\n"
    assert not paths.result_pickle.exists() and not (folder / "result.json").exists()
    state = load_newest(folder / "checkpoints")
    assert state is not None and 0 < state["counters"]["update"] < UPDATES
    words = f"stopped and saved at update {state['counters']['update']}"
    assert words in (tmp_path / "log").read_text()

    queued = DelayedSubmission.load(paths.submitted_pickle)
    assert queued._timeout_countdown == 3  # it was no timeout
    queued.result()
    whole = train_one(recipe, "batchformer", 0, root=tmp_path / "whole")
    assert contents(folder) == contents(whole)
