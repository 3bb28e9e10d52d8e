"""Trains the runs of a recipe side by side, paired by seed; each is written as it finishes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.files.lock import KILLED_S, LOST_S, as_only_trainer
from batchformer.lab.engine import onednn
from batchformer.lab.engine.distributed.rank_zero import on_rank_zero
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.engine.loop import Job, train_interleaved
from batchformer.lab.engine.method import Batches
from batchformer.lab.runs.folder import read_config
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.sub_runs import combine, parts_of
from batchformer.lab.tasks.base import class_sizes, remarks_in
from batchformer.nn.exchange import is_rank_zero, world_size

#: The device of runs that this process does not train: it only reads them, or jobs train them.
CPU = torch.device("cpu")
#: A run that has ended, and the error if it diverged.
Ended = tuple[Run, DivergedError | None]


def run(
    recipe: Recipe,
    arm: str,
    seed: int,
    *,
    root: Path,
    device: torch.device,
    quiet: bool = False,
    wandb_project: str | None = None,
) -> Path:
    """Train one arm with one seed, continue where it stopped, or find it finished.

    Returns:
        The run's folder, which holds all that a report needs.

    Raises:
        DivergedError: a loss became NaN or infinite, or a score NaN; checkpoints are kept.
    """
    one = Run.below(root, recipe, arm, seed, device)
    for _, error in train_all([one], quiet, wandb=wandb_project):
        if error is not None:
            raise error
    return one.folder


def runs_of_comparison(
    recipe: Recipe,
    arms: Sequence[str],
    seeds: Sequence[int],
    root: Path,
    device: torch.device = CPU,
) -> list[Run]:
    """Every arm with every seed, seed by seed, so that early results are already paired."""
    return [Run.below(root, recipe, arm, seed, device) for seed in seeds for arm in arms]


def folders_of(ended: Iterator[Ended]) -> Iterator[Path]:
    """Folders of the runs that finished; stderr says why others did not."""
    for one, error in ended:
        if error is None:
            yield one.folder
        elif is_rank_zero():
            print(f"{one.title}: {error}", file=sys.stderr, flush=True)


def train_all(
    runs: Sequence[Run], quiet: bool, together: int = 1, wandb: str | None = None
) -> Iterator[Ended]:
    """Train all unfinished runs; a run with parts ends with its last part."""
    if together > 1 and world_size() > 1:
        raise ValueError(
            f"--together {together} trains several runs on one device, and {world_size()} ranks "
            "train one run together: take one or the other."
        )
    for device in {one.device for one in runs}:
        onednn.prepare(device, {one.trained.train.precision for one in runs})
    for one in runs:
        one.require_sources()
    with lock_runs(runs):
        _refuse_unfit([one for one in runs if not one.finished])
        yield from _train_locked(runs, quiet, together, wandb)


def _refuse_unfit(runs: Sequence[Run]) -> None:
    """Check the folder of every run, and build every arm once, before the first one trains.

    Otherwise a mistake that only shows in a later arm is found after hours. The arms before it have
    then been trained with the wrong settings, and their folders refuse the corrected ones.
    """
    for one in runs:
        one.require_own_folder()
    first: dict[tuple[str, str], Run] = {}
    for one in runs:
        first.setdefault((one.recipe.name, one.arm), one)
    if len(first) > 1:  # a single arm is built right after this anyway
        for one in first.values():
            parts_of(one)[0].require_buildable()


@contextmanager
def lock_runs(runs: Sequence[Run]) -> Iterator[None]:
    """Lock all unfinished runs for this process; rank 0 holds the locks.

    Raises:
        LockHeldError: another process trains one of them; nothing was changed.
    """
    with ExitStack() as locks:
        on_rank_zero(lambda: _lock(runs, locks))
        yield


def _lock(runs: Sequence[Run], locks: ExitStack) -> None:
    folders = {one.folder for one in runs if not one.finished}
    # If the machine of an earlier rank 0 is lost, its locks may seem held for a while.
    patience = LOST_S if several_machines() else KILLED_S
    for folder in sorted(folders):  # the same order everywhere, so that one process gets all
        locks.enter_context(as_only_trainer(folder, patience))


def several_machines() -> bool:
    """Whether the ranks of this process are on several machines, as ``torchrun`` says."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    return int(ranks) > int(os.environ.get("LOCAL_WORLD_SIZE", ranks))


def _train_locked(
    runs: Sequence[Run], quiet: bool, together: int, wandb: str | None
) -> Iterator[Ended]:
    for one in runs:
        if one.finished:
            one.begin()
            yield one, None
    tried: set[Path] = set()
    summarize = DataSummary(quiet)
    # Several rounds, as one part of a run may have to wait for another.
    while waiting := _waiting([one for one in runs if not one.finished], tried):
        for group in side_by_side([part for part, _ in waiting.values()], together):
            owners = {one.folder: one for _, one in (waiting[part.folder] for part in group)}
            for one in owners.values():
                one.begin()
                summarize(one)
            for part, error in train_runs(group, quiet, wandb):
                one = waiting[part.folder][1]
                if error is None and part is not one and not combine(one):
                    continue  # other parts of this run are not trained yet, or diverged
                yield (part if error else one), error  # the part that diverged is named
        tried |= set(waiting)


def _waiting(runs: Sequence[Run], tried: set[Path]) -> dict[Path, tuple[Run, Run]]:
    """Trainings that were not tried yet, by folder, each with its run."""
    return {
        part.folder: (part, one)
        for one in runs
        for part in parts_of(one)
        if part.folder not in tried
    }


class DataSummary:
    """Prints what a person should know of the data of runs on stderr, no line twice."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not is_rank_zero()
        self._said: set[str] = set()

    def __call__(self, run: Run) -> None:
        """Print class counts and shots, then remarks, for a run that has begun."""
        if self.quiet:
            return
        facts = (read_config(run.folder) or {}).get("data", {})
        lines = remarks_in(facts)
        data: Any = run.trained.data
        if data.long_tailed:
            lines.insert(0, class_sizes(run.task.method_options["class_counts"], data))
        for line in (f"{facts.get('name', data.name)}: {line}" for line in lines):
            if line not in self._said:
                self._said.add(line)
                print(line, file=sys.stderr, flush=True)


def side_by_side(runs: Sequence[Run], together: int) -> Iterator[list[Run]]:
    """Groups to train at once: first all that have finished, then ``together`` at a time.

    The runs of a group have the same data, since runs of one seed share their batches.
    """
    finished = [one for one in runs if one.finished]
    if finished:
        yield finished
    waiting = [one for one in runs if not one.finished]
    while waiting:
        same = [one for one in waiting if one.trained.data == waiting[0].trained.data]
        group = same[:together]
        yield group
        waiting = [one for one in waiting if one not in group]


def train_runs(runs: Sequence[Run], quiet: bool, wandb: str | None = None) -> Iterator[Ended]:
    """Train the unfinished runs side by side.

    Arms of one seed share their batches if they train on the same data.
    """
    for one in runs:
        one.begin()
    feeds: dict[Any, Batches] = {}
    by_name: dict[str, Run] = {}
    jobs = []
    try:
        for one in runs:
            if one.finished:
                yield one, None
                continue
            train = one.trained.train
            sizes = (train.batch_size, train.drop_last, train.accumulate)
            key = (one.trained.data, one.seed, *sizes)
            feed = feeds[key] = feeds.get(key) or one.feed()
            by_name[one.title] = one
            start = partial(one.training, feed, quiet=quiet, wandb=wandb, draw_bar=len(runs) == 1)
            jobs.append(Job(one.title, start, feed))
        for job, ended in train_interleaved(jobs, runs[0].device):
            yield by_name[job.name], ended if isinstance(ended, DivergedError) else None
    finally:  # also where a run fails, is interrupted, or the caller stops early
        for feed in feeds.values():
            close(feed)
