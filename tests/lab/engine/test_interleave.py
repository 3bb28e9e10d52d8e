"""Runs in turn are the runs alone, and nothing of one reaches another."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.engine.interrupt import Interrupted
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.engine.loop import Job, train_interleaved, training
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.state import Evaluation, Plan
from helpers.lab_runs import fit, quiet_plan, records_of, stop_after

CPU = torch.device("cpu")


class Noisy(Method):
    """A linear fit with dropout, so that a shared generator would show."""

    def __init__(self, seed: int, diverges_at: int = 10**9) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.fc, self.drop = nn.Linear(4, 1), nn.Dropout(0.5)
        self.diverges_at, self.updates = diverges_at, 0

    def step(self, batch: Any) -> dict[str, Tensor]:
        self.updates += 1
        loss = (self.drop(self.fc(batch["x"])) - batch["y"][:, None]).square().mean()
        return {"loss": loss * float("nan") if self.updates > self.diverges_at else loss}


class Numbers:
    """Batches that are functions of the step; at one of them a signal may come."""

    per_epoch = 5

    def __init__(self, signal_at: int | None = None) -> None:
        self.signal_at = signal_at

    def batch(self, step: int) -> dict[str, Any]:
        if step == self.signal_at:
            signal.raise_signal(signal.SIGTERM)
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=draw)
        return {"x": x, "y": x.sum(1)}


def evaluate(method: Method, _: Any) -> Evaluation:
    return Evaluation({"norm": float(sum(p.abs().sum() for p in method.parameters()))})


def plan(folder: Path, seed: int, updates: int = 20) -> Plan:
    train = {"batch_size": 8, "updates": updates, "eval_every": 7, "log_every": 1}
    return quiet_plan(folder, OptimConfig(lr=0.01), ScheduleConfig(), seed, **train)


def job(method: Method, where: Plan, source: Any = None) -> Job:
    def start(request: Any) -> Any:
        return training(method, source or Numbers(), evaluate, where, request, False)

    return Job(where.folder.name, start, source)


def test_in_turn_equals_alone(tmp_path: Path) -> None:
    lengths = {0: 20, 1: 13, 2: 20}  # one ends early
    for seed, updates in lengths.items():
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"alone{seed}", seed, updates))
    jobs = [job(Noisy(s), plan(tmp_path / f"turn{s}", s, u)) for s, u in lengths.items()]
    ended = {j.name: e for j, e in train_interleaved(jobs, CPU)}
    assert list(ended) == ["turn1", "turn0", "turn2"], "each is given as it ends"
    for seed in lengths:
        assert records_of(tmp_path / f"turn{seed}") == records_of(tmp_path / f"alone{seed}")


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path: Path) -> None:
    methods = [Noisy(0), Noisy(1, diverges_at=6), Noisy(2)]
    jobs = [job(m, plan(tmp_path / f"run{i}", i)) for i, m in enumerate(methods)]
    ended = {j.name: e for j, e in train_interleaved(jobs, CPU)}
    assert isinstance(ended.pop("run1"), DivergedError)
    assert all(isinstance(e, Evaluation) for e in ended.values()) and len(ended) == 2


def test_a_signal_saves_every_run(tmp_path: Path) -> None:
    seeds = range(3)
    feeds = [None, Numbers(signal_at=9), None]
    jobs = [job(Noisy(s), plan(tmp_path / f"run{s}", s), feeds[s]) for s in seeds]
    with pytest.raises(Interrupted):
        list(train_interleaved(jobs, CPU))
    for seed in seeds:
        saved = sorted((tmp_path / f"run{seed}" / "checkpoints").glob("*.pt"))
        assert int(saved[-1].name.split(".")[0]) in (9, 10)
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"run{seed}", seed))
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"whole{seed}", seed))
        assert records_of(tmp_path / f"run{seed}") == records_of(tmp_path / f"whole{seed}")


def test_a_signal_in_the_last_evaluation_stops_what_would_come_next(tmp_path: Path) -> None:
    def stopping(method: Method, step: Any) -> Evaluation:
        signal.raise_signal(signal.SIGTERM)
        return evaluate(method, step)

    def start(request: Any) -> Any:
        # Fewer updates than between evaluations: the only one is the last.
        return training(Noisy(0), Numbers(), stopping, plan(tmp_path, 0, updates=3), request)

    runs = train_interleaved([Job("run0", start)], CPU)
    assert isinstance(next(runs)[1], Evaluation), "its result is not lost"
    with pytest.raises(Interrupted, match="had finished"):
        next(runs)


class Reader(Numbers):
    """Batches that are read in sequence; notes each step, and those it had to start anew at."""

    def __init__(self, signal_at: int | None = None) -> None:
        super().__init__(signal_at)
        self.steps: list[int] = []
        self.started: list[int] = []

    def batch(self, step: int) -> dict[str, Any]:
        if not self.steps or step not in (self.steps[-1], self.steps[-1] + 1):
            self.started.append(step)
        self.steps.append(step)
        return super().batch(step)


def stopped(folder: Path, seed: int, updates: int) -> None:
    """A run that was stopped after so many updates."""
    stop_after(updates, Noisy(seed), Numbers(), evaluate, plan(folder, seed))


def test_runs_that_share_a_feed_take_its_batches_together(tmp_path: Path) -> None:
    """Stopped at different updates, those that are behind catch up before the others go on."""
    done = {0: 12, 1: 3, 2: 12, 3: 0}
    for seed, updates in done.items():
        if updates:
            stopped(tmp_path / f"turn{seed}", seed, updates)
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"alone{seed}", seed))
    reader = Reader()
    jobs = [job(Noisy(s), plan(tmp_path / f"turn{s}", s), reader) for s in done]
    assert all(isinstance(end, Evaluation) for _, end in train_interleaved(jobs, CPU))
    assert reader.started == [12, 3, 12, 0], "each begins once where it was stopped"
    assert reader.steps[4:] == [
        *range(1, 4),  # the last alone, until it is where the second is
        *(step for step in range(4, 13) for _ in range(2)),
        *(step for step in range(13, 20) for _ in range(4)),
    ]
    for seed in done:
        assert records_of(tmp_path / f"turn{seed}") == records_of(tmp_path / f"alone{seed}")


def test_runs_with_feeds_of_their_own_do_not_wait(tmp_path: Path) -> None:
    stopped(tmp_path / "run0", 0, 12)
    readers = [Reader(), Reader()]
    jobs = [job(Noisy(s), plan(tmp_path / f"run{s}", s), readers[s]) for s in range(2)]
    names = [ended.name for ended, _ in train_interleaved(jobs, CPU)]
    assert names == ["run0", "run1"] and [r.started for r in readers] == [[12], [0]]


def test_runs_at_different_updates_are_all_saved_by_a_signal(tmp_path: Path) -> None:
    stopped(tmp_path / "run0", 0, 12)
    feed = Reader(signal_at=5)
    jobs = [job(Noisy(s), plan(tmp_path / f"run{s}", s), feed) for s in range(2)]
    with pytest.raises(Interrupted):
        list(train_interleaved(jobs, CPU))
    saved = [max((tmp_path / f"run{s}/checkpoints").iterdir()).name[:9] for s in range(2)]
    assert saved == ["000000013", "000000006"]
