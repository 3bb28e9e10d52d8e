"""Runs as jobs of their own: which they are, and training them so on this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.interrupt import Interrupted, stop_requests
from batchformer.lab.recipes.sweep import Sweep
from batchformer.lab.runs.cluster import JobConfig, Launcher, executor_of
from batchformer.lab.runs.folder import refuse_other_configuration
from batchformer.lab.runs.job import RunJob
from batchformer.lab.runs.plain import as_plain
from batchformer.lab.runs.run import Run, pick_device
from batchformer.lab.runs.sweep_run import run_sweep

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
            as_plain(run.recipe),
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
        refuse_other_configuration(run.folder, {"trained": as_plain(run.settled())})
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
