"""Records survive crashes and rewinds; people see lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from batchformer.lab.engine.log import Progress, RunLog, read_records


def test_records_are_written_and_rewound(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step in (10, 20, 30):
        log.write("train", 0, step, {"loss": 1.0 / step})
        log.write("eval", 0, step, {"all": float(step)})
    log.close()
    with log.path.open("a") as file:
        file.write('{"kind": "train", "st')  # the process was killed here
    assert len(read_records(log.path)) == 6
    RunLog(tmp_path).rewind(20)
    kept = [(r["kind"], r["step"]) for r in map(json.loads, log.path.read_text().splitlines())]
    assert kept == [("train", 10), ("eval", 10), ("train", 20)], "the evaluation at 20 comes again"
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_nothing_written_is_no_error(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "new")
    log.rewind(0)
    log.close()
    assert read_records(tmp_path / "absent.jsonl") == []


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("demo", 100) as progress:
        progress.resume(40)
        progress.train(1, 50, 0.5, 1000.0)
        progress.evaluated(1, 50, {"all": 71.234, "few": 3.0})
        progress.say("a checkpoint is damaged")
    seen = capsys.readouterr()
    assert seen.out.startswith("demo: epoch 1 update 50/100 all 71.2 few 3.0 (")
    assert seen.err == "a checkpoint is damaged\n"


def test_quiet_says_only_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("demo", 100, quiet=True) as progress:
        progress.evaluated(1, 50, {"all": 71.2})
        progress.say("damaged")
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err == "damaged\n"


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"batchformer\[wandb\]"):
        RunLog(tmp_path, wandb_project="p")


def test_the_same_values_reach_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Run:
        logged: ClassVar[list[tuple[dict[str, float], int]]] = []
        finished = False

        def log(self, values: dict[str, float], step: int) -> None:
            self.logged.append((values, step))

        def finish(self) -> None:
            self.finished = True

    run, stand_in = Run(), ModuleType("wandb")
    stand_in.init = lambda **options: run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    log = RunLog(tmp_path, wandb_project="p")
    log.write("eval", 1, 20, {"all": 50.5})
    log.close()
    assert run.logged == [({"eval/all": 50.5}, 20)] and run.finished
