"""Trains every run in a job of its own: on this machine, or submitted to Slurm."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from batchformer.lab.config.recipe import effective_changes
from batchformer.lab.engine.interrupt import Interrupted, stop_requests
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.runs.build import pick_device
from batchformer.lab.runs.cluster import JobConfig, Launcher, executor_of
from batchformer.lab.runs.folder import (
    RECORD,
    read_config,
    read_jobs,
    recipe_to_json,
    write_json,
)
from batchformer.lab.runs.job import RunJob
from batchformer.lab.runs.run import Run

#: States of jobs in Slurm that are not over.
IN_QUEUE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED")
#: Seconds until a file that another machine wrote appears here.
FILE_DELAY_S = 10.0


@dataclass(frozen=True)
class Launch:
    """How the runs of one comparison or sweep become jobs."""

    launcher: Launcher
    config: JobConfig
    root: Path
    name: str
    device: str = "auto"
    quiet: bool = False

    @property
    def folder(self) -> Path:
        """The folder of logs and job files."""
        return (self.config.folder or self.root / self.name / "jobs").expanduser().resolve()

    def executor(self) -> Any:
        return executor_of(self.launcher, self.config, self.folder, f"batchformer-{self.name}")

    def job_of(self, run: Run, visible: str | None = None) -> RunJob:
        """The job that trains a run."""
        device = self.device
        if self.launcher == "slurm" and device == "auto" and self.config.gpus:
            device = "cuda"  # a job that does not find its GPU should fail
        return RunJob(
            recipe_to_json(run.recipe),
            run.arm,
            run.seed,
            str(self.root.resolve()),
            device,
            self.quiet,
            tuple(sys.argv[1:]),
            visible,
        )


def still_to_train(runs: Sequence[Run]) -> list[Run]:
    """The runs that have not finished. All are checked first, so that none fails in the queue.

    Raises:
        FileNotFoundError: a run starts from another that has to be trained first.
        ValueError: a folder holds a run with other settings.
    """
    for run in runs:
        run.require_sources()
        run.require_own_folder()
    return [run for run in runs if not run.finished]


def train_locally(launch: Launch, runs: Sequence[Run]) -> list[tuple[Run, Any]]:
    """Train runs in processes of their own on this machine, some at a time.

    A run that fails is reported; the others continue.

    Returns:
        The runs that were trained, with their jobs.

    Raises:
        Interrupted: a signal came and was passed on; the runs in training have saved their state.
    """
    executor, device = launch.executor(), pick_device(launch.device)
    waiting, places = still_to_train(runs), visible_devices(device)
    at_once = launch.config.at_once or len(places)
    launch = replace(launch, device=device.type)
    running: dict[int, tuple[Run, Any]] = {}
    ended: list[tuple[Run, Any]] = []
    told = False
    with stop_requests() as request:
        while running or (waiting and not told):
            for slot in range(at_once):
                if slot in running and running[slot][1].done():
                    ended.append(running.pop(slot))
                    report_end(*ended[-1], launch.quiet)
                if slot not in running and waiting and not told:
                    run = waiting.pop(0)
                    with _ignoring_ctrl_c():
                        job = executor.submit(launch.job_of(run, places[slot % len(places)]))
                    running[slot] = run, job
            if request.signal_number and not told:
                told = True
                for _, job in running.values():
                    if not job.done():
                        os.kill(int(job.job_id), signal.SIGTERM)
            time.sleep(0.1)
    if request.signal_number:
        words = "Stopped, and saved what was training. The same command goes on from there."
        raise Interrupted(request.signal_number, words)
    return ended


def visible_devices(device: torch.device) -> list[str | None]:
    """Values of CUDA_VISIBLE_DEVICES for jobs side by side, one GPU each; None leaves it alone."""
    if device.type != "cuda":
        return [None]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
    return [names[device.index]] if device.index is not None else [*names]


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes that start here ignore Ctrl-C; this process receives it and asks them to save."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def report_end(run: Run, job: Any, quiet: bool) -> None:
    """Print that a run has finished, or the last line of its log if it has not."""
    if run.finished:
        if not quiet:
            print(f"{run.title}: finished", flush=True)
        return
    log = Path(job.paths.stderr)
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
    words = f"{run.title}: job {job.job_id} ended without a result: {last[:300]} (log: {log})"
    print(words, file=sys.stderr, flush=True)


def diverged(run: Run, job: Any) -> bool:
    """Whether a job ended because its run diverged, and would diverge again with these settings."""
    log, config = Path(job.paths.stderr), read_config(run.folder)
    if run.finished or config is None or not log.exists():
        return False
    changed = effective_changes(config["trained"], recipe_to_json(run.settled()))
    return not changed and f"{DivergedError.__name__}: " in log.read_text(errors="replace")


def submit(launch: Launch, runs: Sequence[Run]) -> list[tuple[Run, Any]]:
    """Submit the runs that are left, and print all jobs.

    A run is not submitted if it has finished, has a job in the queue, or would diverge again.

    Returns:
        Unfinished runs with their jobs, those of earlier calls included.
    """
    executor, missing = launch.executor(), still_to_train(runs)
    above = launch.root / launch.name
    keys = {run.folder: run.folder.relative_to(above).as_posix() for run in missing}
    before = earlier_jobs(above / RECORD, {keys[run.folder]: run for run in missing})
    new = [run for run in missing if keys[run.folder] not in before]
    try:
        jobs = executor.submit_array([launch.job_of(run) for run in new]) if new else []
    except RuntimeError as error:  # the message of sbatch
        raise ValueError(f"Slurm did not take the jobs: {str(error).strip()}") from error
    begun = {keys[run.folder]: job for run, job in zip(new, jobs, strict=True)}
    if begun:
        new_jobs = {
            key: {"job": job.job_id, "folder": str(launch.folder)} for key, job in begun.items()
        }
        write_json(above / RECORD, {"jobs": {**read_jobs(above / RECORD), **new_jobs}})
    print(f"{len(runs) - len(missing)} of {len(runs)} runs have finished.")
    for run in missing:
        key = keys[run.folder]
        job, state = (begun[key], "submitted") if key in begun else (before[key], "already there")
        state = "diverged" if key in before and diverged(run, job) else state
        print(f"{run.title}: job {job.job_id}, {state}")
    if missing:
        print(f"Logs: {launch.folder}")
        page = above / "report.html"
        print(f"Report of what has finished: batchformer report {above} --to {page}", flush=True)
    return [(run, (before | begun)[keys[run.folder]]) for run in missing]


def wait_for(submitted: Sequence[tuple[Run, Any]], quiet: bool = False, every: float = 5) -> None:
    """Wait until all jobs have ended, and print how each ended.

    Raises:
        Interrupted: a signal came; the jobs continue.
    """
    waiting = list(submitted)
    with stop_requests() as request:
        while waiting and not request.signal_number:
            for one in [one for one in waiting if one[1].done()]:
                waiting.remove(one)
                end = time.monotonic() + FILE_DELAY_S
                while not (one[0].finished or diverged(*one)) and time.monotonic() < end:
                    time.sleep(0.1)
                report_end(*one, quiet)
            time.sleep(every if waiting else 0)
    if request.signal_number and waiting:
        words = f"No longer waiting for {len(waiting)} jobs, which continue."
        raise Interrupted(request.signal_number, words)


def earlier_jobs(record: Path, runs: Mapping[str, Run]) -> dict[str, Any]:
    """The jobs of these runs that wait or run, or in which the run diverged, by run."""
    from submitit import SlurmJob

    known = read_jobs(record)
    # All jobs are made first, so that Slurm is asked once for all.
    jobs = {key: SlurmJob(known[key]["folder"], known[key]["job"]) for key in runs if key in known}
    return {
        key: job
        for key, job in jobs.items()
        if diverged(runs[key], job)
        or (not job.paths.result_pickle.exists() and job.state.split(" ")[0] in IN_QUEUE)
    }
