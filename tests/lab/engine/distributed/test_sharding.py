"""FSDP2 trains what DDP trains, and its checkpoints are those of one process.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.feeds.sharding import all_rows, scored_rows
from batchformer.lab.data.transforms import digits_train
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.distributed import sharding
from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.loop import training
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.engine.state import Evaluation, Plan
from helpers.data_files import grey_images
from helpers.lab_runs import fit, quiet_plan

SPLIT = grey_images(30)


class Network(nn.Module):
    """Two blocks in a sequence, and what is called without its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 16)
        self.blocks = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
        self.scale = nn.Parameter(torch.ones(3))  # fewer rows than some groups have ranks

    def forward_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(x.flatten(1))) * self.scale.sum()
        return features


class Net(Method):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.head = Network(), nn.Linear(16, 10)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.predict(batch["x"]), batch["y"])}

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.network.forward_features(x))
        return logits


class Moves(Net):
    def after_update(self) -> None:
        self.head.bias.data.zero_()


def evaluate(method: Method, optimizer_step: OptimizerStep) -> Evaluation:
    x = digits_train()(SPLIT.x, torch.full((30, digits_train().draws), 0.5, dtype=torch.float64))
    logits = all_rows(method.predict(x[scored_rows(30)]), 30)
    return Evaluation({"all": 100 * float((logits.argmax(1) == SPLIT.labels).double().mean())})


def plan(folder: Path, **train: Any) -> Plan:
    options = {"batch_size": 8, "updates": 5, "eval_every": 2, "clip_norm": 0.5, **train}
    optim, schedule = OptimConfig(name="adam", lr=0.01), ScheduleConfig(kind="constant")
    return quiet_plan(folder, optim, schedule, select_on="test", **options)


def run(folder: Path, stop_at: int | None = None, **train: Any) -> dict[str, Any]:
    """What is kept of a training; one that stops is left, as if its machine had died."""
    feed = Feed(SPLIT, digits_train(), Steps(Shuffle(len(SPLIT), seed=3), 8), seed=3)
    if stop_at is not None:
        steps = training(Net(), feed, evaluate, plan(folder, **train), StopRequest())
        for _ in range(stop_at):
            next(steps)
        return {}
    found = fit(Net(), feed, evaluate, plan(folder, **train))
    kept = checkpoint.load_newest(folder / "checkpoints")
    return {"metrics": found.metrics, "kept": kept}


def work(rank: int, folder: Path) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    sharding.MIN_BLOCK_PARAMETERS = 100
    own = folder / str(rank)
    found: dict[str, Any]
    try:
        found = {"fsdp": run(own / "fsdp", parallel="fsdp")}
    except RuntimeError as error:
        if "gloo" not in str(error).lower() and "not supported" not in str(error):
            raise
        found = {"skip": str(error)}
    else:
        run(own / "resumed", stop_at=3, parallel="fsdp")
        found["resumed"] = run(own / "resumed", parallel="fsdp")
        run(own / "by ddp", stop_at=3, parallel="fsdp")
        found["by ddp"] = run(own / "by ddp")
        run(own / "by fsdp", stop_at=3)
        found["by fsdp"] = run(own / "by fsdp", parallel="fsdp")
        refused = []
        for method, ema in ((Moves(), 0.0), (Net(), 0.9)):
            try:
                sharding.shard(method, TrainConfig(parallel="fsdp", ema=ema))
            except ValueError as error:
                refused.append(str(error))
        found["refused"] = refused
        made = Net()
        found["blocks"] = [*map(str, sharding.blocks(made, 100))]
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(not sharding.fsdp_runs_on_cpu(), reason="the FSDP of this torch needs GPUs")
def test_fsdp_trains_as_one_process_and_keeps_full_tensors(
    run_ranks: Callable[[str, Path, int], None], tmp_path: Path
) -> None:
    run_ranks(__file__, tmp_path, 2)
    found = torch.load(tmp_path / "0.pt", weights_only=True)  # full, plain tensors
    if "skip" in found:
        pytest.skip(f"gloo cannot shard weights here: {found['skip'][:200]}")
    one = run(tmp_path / "one")
    for name in ("fsdp", "resumed", "by ddp", "by fsdp"):
        kept = found[name]["kept"]
        assert found[name]["metrics"] == one["metrics"], name
        for key, value in one["kept"]["method"].items():
            torch.testing.assert_close(kept["method"][key], value, rtol=0, atol=2e-5)
        moments = one["kept"]["optimizers"]["main"]["state"]
        for number, moment in kept["optimizers"]["main"]["state"].items():
            torch.testing.assert_close(moment["exp_avg"], moments[number]["exp_avg"])
    other = torch.load(tmp_path / "1.pt", weights_only=True)
    assert other["fsdp"] == {"metrics": one["metrics"], "kept": None}, "rank 0 writes"
    moves, ema = found["refused"]
    assert "Moves moves some itself" in moves and "train.ema" in ema and "ddp" in ema
    assert len(found["blocks"]) == 2 and all("in_features=16" in block for block in found["blocks"])


if __name__ == "__main__":
    work(int(sys.argv[2]), Path(sys.argv[1]))
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
