"""What is said of the data before anything is trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from batchformer.lab.recipes.small import demo
from batchformer.lab.runs import compare as opening
from batchformer.lab.runs.compare import Opening
from batchformer.lab.runs.folder import write_json
from batchformer.lab.runs.run import Run

CPU = torch.device("cpu")


def begun(root: Path, arm: str, ratio: float, *remarks: str) -> Run:
    """A run whose folder says what was found of its data."""
    recipe = dataclasses.replace(demo(), data=demo().data_with(ratio=ratio))
    run = Run.below(root / f"{ratio:g}", recipe, arm, 0, CPU)
    facts = {"name": f"digits {ratio:g}", "remarks": list(remarks)}
    write_json(run.folder / "config.json", {"trained": {}, "data": facts})
    return run


def test_every_line_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say = Opening(quiet=False)
    for arm in ("baseline", "batchformer"):
        for ratio in (50.0, 20.0):
            say(begun(tmp_path, arm, ratio, "one is missing"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("digits 50: 10 classes, ") and " many, " in lines[0]
    assert lines[1] == "digits 50: one is missing"
    assert lines[2].startswith("digits 20: 10 classes, ") and lines[2][10:] != lines[0][10:]
    assert lines[3] == "digits 20: one is missing"


def test_one_rank_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "is_rank_zero", lambda: False)
    Opening(quiet=False)(begun(tmp_path, "baseline", 50.0, "one is missing"))
    assert capsys.readouterr() == ("", "")


def test_quiet_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Opening(quiet=True)(begun(tmp_path, "baseline", 50.0, "one is missing"))
    assert capsys.readouterr() == ("", "")
