"""What a training is told is obeyed, and stays as it was told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.log import read_records
from batchformer.lab.engine.loop import fit
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.engine.stage import BEST, Evaluation, Plan


class Net(Method):
    """A line whose inputs are dropped at random."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)
        nn.init.constant_(self.line.weight, 1.0)
        nn.init.constant_(self.line.bias, 0.0)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": nn.functional.dropout(self.line(batch["x"]), 0.5).square().mean()}


class Ones:
    per_epoch = 2

    def batch(self, step: int) -> dict[str, Any]:
        return {"x": torch.ones(4, 3), "y": torch.zeros(4)}


def bias(method: Method, mechanics: OptimizerStep) -> Evaluation:
    return Evaluation({"all": float(method.line.bias)})  # type: ignore[arg-type, union-attr]


def plan(folder: Path, **changes: Any) -> Plan:
    told = Plan(
        optim=OptimConfig(lr=0.01),
        schedule=ScheduleConfig(kind="constant"),
        train=TrainConfig(batch_size=4, updates=4, eval_every=2, log_every=2),
        seed=3,
        folder=folder,
        device=torch.device("cpu"),
        quiet=True,
    )
    return dataclasses.replace(told, **changes)


def test_scores_keep_their_order_and_figures_are_each_ones_own() -> None:
    first, second = Evaluation({"zero": 1.0, "all": 2.0}), Evaluation({})
    assert next(iter(first.metrics)) == "zero", "the headline is the first"
    assert first.figures == {} and first.figures is not second.figures
    assert first == Evaluation({"zero": 1.0, "all": 2.0}, {}) != Evaluation({"zero": 1.0})


@pytest.mark.parametrize("made", [Evaluation({}), plan(Path("run"))])
def test_neither_changes_while_a_training_goes(made: Any) -> None:
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)


def test_only_who_is_told_of_it_has_a_default() -> None:
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(Plan)
        if field.default is not dataclasses.MISSING
    }
    assert defaults == {"title": "run", "quiet": False, "wandb_project": None, "on_start": None}


def test_everything_is_written_below_its_folder(tmp_path: Path) -> None:
    chosen = dataclasses.replace(plan(tmp_path).train, select_on="test")
    end = fit(Net(), Ones(), bias, plan(tmp_path / "a/run", train=chosen))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    folder = tmp_path / "a/run"
    assert [r["step"] for r in read_records(folder / "metrics.jsonl")] == [2, 2, 4, 4]
    # Folders of earlier versions have the name too.
    assert BEST == "best" and list((folder / "best").glob("*.pt"))
    assert checkpoint.load_newest(folder / "checkpoints") is not None
    assert set(end.metrics) == {"all"}


def test_the_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    scores = [
        fit(Net(), Ones(), bias, plan(tmp_path / str(number), seed=seed)).metrics["all"]
        for number, seed in enumerate((3, 3, 4))
    ]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize("quiet", [False, True])
def test_its_title_names_it_unless_it_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    fit(Net(), Ones(), bias, plan(tmp_path, title="tail baseline seed 0", quiet=quiet))
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert bool(lines) != quiet
    assert all(line.startswith("tail baseline seed 0: ") for line in lines)
