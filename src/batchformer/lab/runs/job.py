"""One run as a job of a cluster: it goes on where it was stopped, and is never trained twice."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from batchformer.lab.data.files.lock import LOST_S, as_only_trainer
from batchformer.lab.engine.interrupt import Interrupted
from batchformer.lab.runs.cluster import WARNING_S
from batchformer.lab.runs.plain import from_plain

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
        recipe, signals = from_plain(self.recipe), StopSignals()
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
