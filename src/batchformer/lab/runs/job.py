"""The job of one run on a cluster, and the signals that stop it.

submitit imports this file before it can handle a signal, so the file must not import torch.
"""

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
from batchformer.lab.runs.folder import recipe_from_json

#: Seconds to end the update and to save. After them a job stops with its last checkpoint.
GRACE_S = WARNING_S / 2
#: Seconds to wait for a request to be queued again, which may follow a request to end.
REQUEUE_WAIT_S = 60


@dataclass(frozen=True)
class RunJob:
    """The job of one run, in plain values, because submitit pickles it.

    A stopped job continues where it was stopped, and no run is trained twice.
    """

    recipe: Mapping[str, Any]  # as JSON holds it
    arm: str
    seed: int
    root: str  # folder of all runs
    device: str  # name of the device to train on, on the machine of the job
    quiet: bool = False  # no progress in the log
    command: tuple[str, ...] = ()  # arguments that the person gave, for the run's provenance
    visible: str | None = None  # value of CUDA_VISIBLE_DEVICES, where the cluster does not set it

    def __call__(self) -> None:
        """Train to the end, or continue a stopped run; a finished run ends at once."""
        if self.visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
        sys.argv[1:] = self.command
        recipe, signals = recipe_from_json(self.recipe), StopSignals()
        folder = Path(self.root) / recipe.name / self.arm / f"seed{self.seed}"
        try:
            with signals, as_only_trainer(folder, LOST_S):
                from batchformer.lab.runs.build import pick_device  # late: they import torch
                from batchformer.lab.runs.compare import run

                root, device = Path(self.root), pick_device(self.device)
                run(recipe, self.arm, self.seed, root=root, device=device, quiet=self.quiet)
        except Interrupted as stop:
            print(stop, file=sys.stderr, flush=True)
            if signals.queue_again:
                signal.raise_signal(warning_signal())  # submitit's handler is installed again
            if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
                time.sleep(REQUEUE_WAIT_S)
            raise SystemExit(stop.exit_code) from stop

    def checkpoint(self) -> Any:
        """The job that submitit queues again: the same one, as the run's folder has its state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def warning_signal() -> signal.Signals:
    """The signal that Slurm sends, for submitit, before it stops a job."""
    name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
    return signal.Signals[f"SIG{name}"]


class StopSignals:
    """Passes the signals of a cluster to the training as SIGTERM, which asks it to save first.

    Submitit's handler would exit at once with the last checkpoint. A training that does not listen
    yet, for example because it still reads data, is asked as soon as it listens. When the time is
    up it is stopped with what was saved before.

    Args:
        grace: seconds until it is stopped.
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
            return  # Slurm signals every process of a job, also those that read data
        self.queue_again |= number == warning_signal()
        if self._end is None:
            self._end = time.monotonic() + self.grace
            signal.setitimer(signal.ITIMER_REAL, 0.01, 1.0)

    def _later(self, number: int, frame: FrameType | None) -> None:
        if self._end is None or os.getpid() != self._process:
            return
        if time.monotonic() >= self._end:
            raise Interrupted(signal.SIGTERM, "Stopped with what was saved before.")
        if signal.getsignal(signal.SIGTERM) != self._asked:  # a training listens now
            signal.raise_signal(signal.SIGTERM)
