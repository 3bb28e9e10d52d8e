"""Runs as jobs of their own: on this machine, or as jobs of Slurm."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.files.lock import LOST_S, as_only_trainer
from batchformer.lab.engine.interrupt import Interrupted, stop_requests
from batchformer.lab.recipes.sweep import Sweep
from batchformer.lab.runs.cluster import WARNING_S, JobConfig, Launcher, executor_of
from batchformer.lab.runs.folder import RECORD as RECORD
from batchformer.lab.runs.folder import (
    read_json,
    recipe_from_json,
    recipe_to_json,
    refuse_other_configuration,
    write_json,
)
from batchformer.lab.runs.run import Run, pick_device
from batchformer.lab.runs.sweep import run_sweep

# One run as a job of a cluster: it goes on where it was stopped, and is never trained twice.

#: Seconds for the update and to save; then the job stops with what was saved before.
GRACE_S = WARNING_S / 2
#: Seconds between a request to end and one to be queued again, where a cluster sends both.
BETWEEN_S = 60


@dataclass(frozen=True)
class RunJob:
    """One arm of a recipe with one seed, in plain values: this is what is written for a job.

    Args:
        recipe: as JSON holds it.
        arm: of the recipe.
        seed: of the run.
        root: folder of all runs.
        device: name of the device to train on, as the job finds it.
        quiet: no progress in the log.
        command: arguments that the person gave, for the record.
        visible: what CUDA_VISIBLE_DEVICES is set to, where the cluster does not do that.
    """

    recipe: Mapping[str, Any]
    arm: str
    seed: int
    root: str
    device: str
    quiet: bool = False
    command: tuple[str, ...] = ()
    visible: str | None = None

    def __call__(self) -> None:
        """Train to the end, or from where it was stopped; a finished run ends at once."""
        if self.visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
        sys.argv[1:] = self.command
        recipe, signals = recipe_from_json(self.recipe), StopSignals()
        folder = Path(self.root) / recipe.name / self.arm / f"seed{self.seed}"
        try:
            with signals, as_only_trainer(folder, LOST_S):
                from batchformer.lab.runs.compare import run  # late: a signal may come before torch
                from batchformer.lab.runs.run import pick_device

                root, device = Path(self.root), pick_device(self.device)
                run(recipe, self.arm, self.seed, root=root, device=device, quiet=self.quiet)
        except Interrupted as stop:
            print(stop, file=sys.stderr, flush=True)
            if signals.queue_again:
                signal.raise_signal(warning_signal())  # submitit's handler is back in its place
            if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
                time.sleep(BETWEEN_S)
            raise SystemExit(stop.exit_code) from stop

    def checkpoint(self) -> Any:
        """What submitit puts into the queue again: the same, for the run's folder has its state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def warning_signal() -> signal.Signals:
    """What submitit lets Slurm send before a job is stopped for its time, or for another job."""
    name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
    return signal.Signals[f"SIG{name}"]


class StopSignals:
    """The signals of a cluster, told to the training in the way it knows: SIGTERM.

    Submitit's handler would leave at once, between any two lines, with what was last saved. Here
    the training is asked to save first; where it does not listen (it reads data, or evaluates) it
    is asked when it does, or stopped when the time is up: then there is nothing new to save.

    Args:
        grace: seconds until that.
    """

    def __init__(self, grace: float = GRACE_S) -> None:
        self.grace, self.queue_again = grace, False
        self._end: float | None = None

    def __enter__(self) -> StopSignals:
        self._process = os.getpid()
        own = {
            signal.SIGTERM: self._asked,
            signal.SIGALRM: self._later,
            warning_signal(): self._asked,
        }
        self._before = {number: signal.signal(number, handler) for number, handler in own.items()}
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # Slurm tells every process of a job, those that read data as well
        self.queue_again |= number == warning_signal()
        if self._end is None:
            self._end = time.monotonic() + self.grace
            signal.setitimer(signal.ITIMER_REAL, 0.01, 1.0)

    def _later(self, number: int, frame: FrameType | None) -> None:
        if self._end is None or os.getpid() != self._process:
            return
        if time.monotonic() >= self._end:
            raise Interrupted(signal.SIGTERM, "Stopped with what was saved before.")
        if signal.getsignal(signal.SIGTERM) != self._asked:  # a training listens, not asked yet
            signal.raise_signal(signal.SIGTERM)


# Runs as jobs of their own: which they are, and training them so on this machine.

#: Nothing is computed where jobs are submitted.
HERE = torch.device("cpu")


def runs_of_comparison(
    recipe: Recipe, arms: Sequence[str], seeds: Sequence[int], root: Path
) -> list[Run]:
    """Every arm with every seed, seed by seed."""
    return [Run.below(root, recipe, arm, seed, HERE) for seed in seeds for arm in arms]


def runs_of_sweep(
    sweep: Sweep,
    base: Recipe,
    arms: Sequence[str],
    levels: Sequence[str],
    seeds: Sequence[int],
    root: Path,
) -> list[Run]:
    """Every level and arm with every seed; writes how they belong together."""
    cells = sweep.cells(arms, levels)
    recipes = {level: sweep.recipe(level, base) for level, _ in cells}
    # With no seed it trains nothing: what is left of it is the description, and its refusals.
    list(run_sweep(sweep, base, arms, levels, (), root=root, device=HERE))
    return [
        run
        for seed in seeds
        for level, arm in cells
        for run in runs_of_comparison(recipes[level], (arm,), (seed,), root)
    ]


@dataclass(frozen=True)
class Launch:
    """Where and how the runs of one comparison or sweep become jobs.

    Args:
        launcher: ``"local"`` or ``"slurm"``.
        config: what jobs are given.
        root: folder of all runs.
        name: of the recipe or the sweep.
        device: name of the device that jobs train on.
        quiet: no progress, here and in logs.
    """

    launcher: Launcher
    config: JobConfig
    root: Path
    name: str
    device: str = "auto"
    quiet: bool = False

    @property
    def folder(self) -> Path:
        """Of logs and job files."""
        return (self.config.folder or self.root / self.name / "jobs").expanduser().resolve()

    def executor(self) -> Any:
        return executor_of(self.launcher, self.config, self.folder, f"batchformer-{self.name}")

    def job_of(self, run: Run, visible: str | None = None) -> RunJob:
        """The job that trains a run."""
        device = self.device
        if self.launcher == "slurm" and device == "auto" and self.config.gpus:
            device = "cuda"  # a job that was given a GPU and does not find it should say so
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
    """Those that have not finished, after a look at all of them: better refused here than queued.

    Raises:
        FileNotFoundError: a run starts from another that is to be trained first.
        ValueError: a folder holds a run with other settings.
    """
    for run in runs:
        run.require_sources()
        refuse_other_configuration(run.folder, {"trained": recipe_to_json(run.settled())})
    return [run for run in runs if not run.finished]


def train_locally(launch: Launch, runs: Sequence[Run]) -> None:
    """Train runs in processes of their own on this machine, some at a time, to their end.

    A run that fails is reported and left; the others go on.

    Raises:
        Interrupted: a signal came, and was passed on; what was training has saved its state.
    """
    executor, device = launch.executor(), pick_device(launch.device)
    waiting, places = still_to_train(runs), visible_devices(device)
    at_once = launch.config.at_once or len(places)
    launch = replace(launch, device=device.type)
    running: dict[int, tuple[Run, Any]] = {}
    told = False
    with stop_requests() as request:
        while running or (waiting and not told):
            for slot in range(at_once):
                if slot in running and running[slot][1].done():
                    say_ended(*running.pop(slot), launch.quiet)
                if slot not in running and waiting and not told:
                    run = waiting.pop(0)
                    with _deaf_to_the_keyboard():
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


def visible_devices(device: torch.device) -> list[str | None]:
    """What CUDA_VISIBLE_DEVICES is for jobs side by side: a GPU each; None to leave it alone."""
    if device.type != "cuda":
        return [None]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
    return [names[device.index]] if device.index is not None else [*names]


@contextmanager
def _deaf_to_the_keyboard() -> Iterator[None]:
    """Processes that begin here do not hear Ctrl-C: they are told to save by whoever does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def say_ended(run: Run, job: Any, quiet: bool) -> None:
    """Say that a run has finished or, by the last line of its log, why its job has not."""
    if run.finished:
        if not quiet:
            print(f"{run.title}: finished", flush=True)
        return
    log = Path(job.paths.stderr)
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it left no words")
    words = f"{run.title}: job {job.job_id} ended without a result: {last[:300]} (log: {log})"
    print(words, file=sys.stderr, flush=True)


# Runs as jobs of Slurm: submitted, waited for, and never submitted twice.

#: What Slurm calls jobs that will still do something.
IN_QUEUE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED")
#: Seconds until a file that another machine wrote is seen.
SEEN_LATE_S = 10.0


def submit(launch: Launch, runs: Sequence[Run]) -> list[tuple[Run, Any]]:
    """Submit what has neither finished nor a job in the queue; say which jobs these are.

    Returns:
        Runs with their jobs, those that were in the queue already among them.
    """
    executor, missing = launch.executor(), still_to_train(runs)
    above = launch.root / launch.name
    keys = {run.folder: run.folder.relative_to(above).as_posix() for run in missing}
    before = queued(above / RECORD, keys.values())
    new = [run for run in missing if keys[run.folder] not in before]
    try:
        jobs = executor.submit_array([launch.job_of(run) for run in new]) if new else []
    except RuntimeError as error:  # what sbatch had to say
        raise ValueError(f"Slurm did not take the jobs: {str(error).strip()}") from error
    begun = {keys[run.folder]: job for run, job in zip(new, jobs, strict=True)}
    if begun:
        _remember(above / RECORD, launch.folder, begun)
    print(f"{len(runs) - len(missing)} of {len(runs)} runs have finished.")
    for run in missing:
        key = keys[run.folder]
        job, state = (begun[key], "submitted") if key in begun else (before[key], "already there")
        print(f"{run.title}: job {job.job_id}, {state}")
    if missing:
        print(f"Logs: {launch.folder}")
        page = above / "report.html"
        print(f"Report of what has finished: batchformer report {above} --to {page}", flush=True)
    return [(run, (before | begun)[keys[run.folder]]) for run in missing]


def wait_for(submitted: Sequence[tuple[Run, Any]], quiet: bool = False, every: float = 5) -> None:
    """Wait until all jobs have ended, and say how.

    Raises:
        Interrupted: a signal came; jobs are left to themselves.
    """
    waiting = list(submitted)
    with stop_requests() as request:
        while waiting and not request.signal_number:
            for one in [one for one in waiting if one[1].done()]:
                waiting.remove(one)
                end = time.monotonic() + SEEN_LATE_S
                while not one[0].finished and time.monotonic() < end:
                    time.sleep(0.1)
                say_ended(*one, quiet)
            time.sleep(every if waiting else 0)
    if request.signal_number and waiting:
        words = f"No longer waiting for {len(waiting)} jobs, which go on without."
        raise Interrupted(request.signal_number, words)


def queued(record: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Those of these runs that a record names a job of which is waiting or running."""
    from submitit import SlurmJob

    known = _recorded(record)
    # All of them first: then Slurm is asked once for all.
    jobs = {key: SlurmJob(known[key]["folder"], known[key]["job"]) for key in keys if key in known}
    return {
        key: job
        for key, job in jobs.items()
        if not job.paths.result_pickle.exists() and job.state.split(" ")[0] in IN_QUEUE
    }


def not_begun(folder: Path) -> list[str]:
    """A line for each run at or below a folder that was submitted and has not begun."""
    return [
        f"{record.parent / key} (job {one['job']})"
        for record in sorted({*folder.glob(RECORD), *folder.glob(f"*/{RECORD}")})
        for key, one in _recorded(record).items()
        if not (record.parent / key / "config.json").exists()
    ]


def _recorded(record: Path) -> Mapping[str, Mapping[str, str]]:
    jobs: Mapping[str, Mapping[str, str]] = {}
    return read_json(record, "jobs")["jobs"] if record.exists() else jobs


def _remember(record: Path, folder: Path, jobs: Mapping[str, Any]) -> None:
    new = {key: {"job": job.job_id, "folder": str(folder)} for key, job in jobs.items()}
    write_json(record, {"jobs": {**_recorded(record), **new}})
