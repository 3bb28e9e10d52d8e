"""Which code trained which part of a run, over all the times that it was started."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs import run as runs
from batchformer.lab.runs.provenance import code_hash, contributing, provenance
from batchformer.lab.runs.run import Run
from helpers.lab_runs import begun, config_of, short, train_one

CPU = torch.device("cpu")


TWELVE = {"updates": 12, "eval_every": 12, "log_every": 1, "checkpoint_every": 4}


def use_code(patch: pytest.MonkeyPatch, name: str) -> None:
    patch.setattr(runs, "provenance", lambda device: {"code_sha256": name, "device": str(device)})


def killed(one: Run, after: int) -> None:
    """Train so many updates, and lose what is not in a checkpoint."""
    assert len(list(itertools.islice(begun(one), after))) == after


def test_a_resumed_run_keeps_every_sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run.below(tmp_path, short(**TWELVE), "batchformer", 0, CPU)
    for code, after in (("old", 6), ("lost", 2), ("new", 0)):
        use_code(monkeypatch, code)
        if after:
            killed(one, after)
        else:
            train_one(one.recipe, one.arm, one.seed, root=tmp_path)
    config = config_of(one.folder)
    facts = {"device": "cpu", "stage": "train"}
    assert config["sittings"] == [
        {"code_sha256": "old", "from_update": 0, **facts},
        {"code_sha256": "lost", "from_update": 4, **facts},
        {"code_sha256": "new", "from_update": 4, **facts},
    ]
    assert config["provenance"] == {"code_sha256": "old", "device": "cpu"}
    assert [s["code_sha256"] for s in contributing(config["sittings"])] == ["old", "new"]

    use_code(monkeypatch, "looks at it")
    before = (one.folder / "config.json").read_bytes()
    train_one(one.recipe, one.arm, one.seed, root=tmp_path)
    assert (one.folder / "config.json").read_bytes() == before


def test_code_of_which_nothing_is_left_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its first checkpoint, a run starts over."""
    one = Run.below(tmp_path, short(**TWELVE), "batchformer", 0, CPU)
    use_code(monkeypatch, "old")
    killed(one, 3)
    use_code(monkeypatch, "new")
    train_one(one.recipe, one.arm, one.seed, root=tmp_path)
    config = config_of(one.folder)
    assert config["provenance"]["code_sha256"] == "new"
    begun = [(sitting["code_sha256"], sitting["from_update"]) for sitting in config["sittings"]]
    assert begun == [("old", 0), ("new", 0)]


@pytest.mark.usefixtures("three_angles")
def test_a_run_of_several_parts_has_the_sittings_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = short(find_recipe("rotated_digits_erm"), updates=2, eval_every=2, checkpoint_every=2)
    use_code(monkeypatch, "only")
    folder = train_one(recipe, "baseline", 0, root=tmp_path)
    sittings = config_of(folder)["sittings"]
    assert [sitting["part"] for sitting in sittings] == ["r0", "r45", "r75"]
    for sitting in sittings:
        (own,) = config_of(folder / sitting.pop("part"))["sittings"]
        assert own == sitting
    assert config_of(folder)["provenance"] == {"code_sha256": "only", "device": "cpu"}


def test_a_sitting_counts_unless_a_later_one_began_before_it() -> None:
    def at(update: int, part: str = "") -> dict[str, Any]:
        return {"from_update": update, "part": part}

    a = [at(0), at(50), at(70)]
    assert contributing(a) == a
    assert contributing([*a, at(60)]) == [*a[:2], at(60)]
    assert contributing([*a, at(30)]) == [a[0], at(30)]
    assert contributing([*a, at(0)]) == [at(0)]
    other = at(0, "other part")
    assert contributing([*a, other]) == [*a, other]


def test_code_device_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["batchformer", "train", "a b"])
    facts = provenance(torch.device("cpu"))
    assert facts["command"] == "batchformer train 'a b'" and facts["device"] == "cpu"
    assert facts["code_sha256"] == code_hash() and len(code_hash()) == 64
