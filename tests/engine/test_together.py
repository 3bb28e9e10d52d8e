"""Runs in turn are the runs alone, and nothing of one reaches another."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.engine.fit import Evaluation, Plan, fit, training
from batchformer.engine.interrupt import Interrupted
from batchformer.engine.method import Method
from batchformer.engine.together import Job, train_together
from batchformer.engine.window import DivergedError

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
    per_epoch = 5

    def batch(self, step: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=draw)
        return {"x": x, "y": x.sum(1)}


def evaluate(method: Method, _: Any) -> Evaluation:
    return Evaluation({"norm": float(sum(p.abs().sum() for p in method.parameters()))})


def plan(folder: Path, seed: int, updates: int = 20) -> Plan:
    return Plan(
        optim=OptimConfig(lr=0.01),
        schedule=ScheduleConfig(),
        train=TrainConfig(batch_size=8, updates=updates, eval_every=7, log_every=1),
        seed=seed,
        folder=folder,
        device=CPU,
        quiet=True,
    )


def job(method: Method, where: Plan, source: Any = None) -> Job:
    def start(request: Any) -> Any:
        return training(method, source or Numbers(), evaluate, where, request, False)

    return Job(where.folder.name, start)


def records(folder: Path) -> list[dict[str, Any]]:
    kept = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in r.items() if k != "samples_per_s"} for r in kept]


def test_in_turn_equals_alone(tmp_path: Path) -> None:
    lengths = {0: 20, 1: 13, 2: 20}  # one ends early
    for seed, updates in lengths.items():
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"alone{seed}", seed, updates))
    jobs = [job(Noisy(s), plan(tmp_path / f"turn{s}", s, u)) for s, u in lengths.items()]
    ended = {j.name: e for j, e in train_together(jobs, CPU)}
    assert list(ended) == ["turn1", "turn0", "turn2"], "each is given as it ends"
    for seed in lengths:
        assert records(tmp_path / f"turn{seed}") == records(tmp_path / f"alone{seed}")


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path: Path) -> None:
    methods = [Noisy(0), Noisy(1, diverges_at=6), Noisy(2)]
    jobs = [job(m, plan(tmp_path / f"run{i}", i)) for i, m in enumerate(methods)]
    ended = {j.name: e for j, e in train_together(jobs, CPU)}
    assert isinstance(ended.pop("run1"), DivergedError)
    assert all(isinstance(e, Evaluation) for e in ended.values()) and len(ended) == 2


def test_a_signal_saves_every_run(tmp_path: Path) -> None:
    class Stopping(Numbers):
        def batch(self, step: int) -> dict[str, Any]:
            if step == 9:
                signal.raise_signal(signal.SIGTERM)
            return super().batch(step)

    seeds = range(3)
    jobs = [
        job(Noisy(s), plan(tmp_path / f"run{s}", s), Stopping() if s == 1 else None) for s in seeds
    ]
    with pytest.raises(Interrupted):
        list(train_together(jobs, CPU))
    for seed in seeds:
        saved = sorted((tmp_path / f"run{seed}" / "checkpoints").glob("*.pt"))
        assert int(saved[-1].name.split(".")[0]) in (9, 10)
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"run{seed}", seed))
        fit(Noisy(seed), Numbers(), evaluate, plan(tmp_path / f"whole{seed}", seed))
        assert records(tmp_path / f"run{seed}") == records(tmp_path / f"whole{seed}")
