"""Sweeps on the digits: layout, pairing, what is kept and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.recipes.ablations import SWEEPS
from batchformer.recipes.changes import unchanged
from batchformer.recipes.compare import run
from batchformer.recipes.demo import demo
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.sweep import Level, Sweep
from batchformer.recipes.sweep_run import run_sweep

CPU = torch.device("cpu")
DEPTH = SWEEPS["demo_layers"]


def short(**train: Any) -> Recipe:
    options = {"updates": 6, "eval_every": 3, "checkpoint_every": 2, "log_every": 3, **train}
    return dataclasses.replace(demo(), train=dataclasses.replace(demo().train, **options))


def train(root: Path, base: Recipe | None = None, sweep: Sweep = DEPTH, **options: Any) -> set[str]:
    settings = {"arms": ["batchformer"], "levels": sweep.level_names[:2], "seeds": [0, 1]}
    settings |= {"root": root, "device": CPU, "quiet": True} | options
    folders = run_sweep(sweep, base or short(), **settings)  # type: ignore[arg-type]
    return {folder.relative_to(root).as_posix() for folder in folders}


def metrics(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())["metrics"]


def test_levels_are_ordinary_runs_side_by_side_or_not(tmp_path: Path) -> None:
    expected = {
        f"demo_layers/{cell}/seed{seed}"
        for cell in ("1/baseline", "1/batchformer", "2/batchformer")
        for seed in (0, 1)
    }
    assert train(tmp_path / "a") == expected
    assert train(tmp_path / "b", together=4) == expected
    for name in expected:
        assert metrics(tmp_path / "a" / name) == metrics(tmp_path / "b" / name)
    config = json.loads((tmp_path / "a/demo_layers/2/batchformer/seed1/config.json").read_text())
    assert config["trained"]["module"]["layers"] == 2 and config["seed"] == 1
    plain = run(short(), "batchformer", 0, root=tmp_path, device=CPU, quiet=True)
    assert metrics(plain) == metrics(tmp_path / "a/demo_layers/1/batchformer/seed0")


def test_finished_runs_are_kept_and_a_sweep_can_grow(tmp_path: Path) -> None:
    train(tmp_path, seeds=[0])
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")}
    assert len(before) == 3
    assert len(train(tmp_path, seeds=[0, 1], together=2)) == 6
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_stopped_level_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    name = "demo_layers/2/batchformer/seed0"
    train(tmp_path / "whole", seeds=[0])
    train(tmp_path / "broken", seeds=[0])
    folder = tmp_path / "broken" / name
    (folder / "result.json").unlink()
    older, newest = sorted((folder / "checkpoints").glob("*.pt"))[-2:]
    newest.unlink()
    assert older.exists(), "there is nothing to go on from"
    assert name in train(tmp_path / "broken", seeds=[0])
    assert metrics(folder) == metrics(tmp_path / "whole" / name)


def test_a_folder_has_one_base(tmp_path: Path) -> None:
    train(tmp_path, seeds=[0], levels=["1"])
    with pytest.raises(ValueError, match=r"begun with other settings: train\.updates was 6, is 7"):
        train(tmp_path, short(updates=7), seeds=[0], levels=["2"])
    assert not (tmp_path / "demo_layers/2").exists()


def test_a_diverged_level_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def wild(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, optim=dataclasses.replace(recipe.optim, lr=1e30))

    levels = (Level(name="wild", change=wild), Level(name="tame", change=unchanged))
    options: dict[str, Any] = {"base": "demo", "factor": "rate", "reference": "tame"}
    sweep = Sweep(name="rates", levels=levels, baseline="each", **options)
    folders = train(tmp_path, sweep=sweep, seeds=[0], together=4)
    assert folders == {"rates/tame/baseline/seed0", "rates/tame/batchformer/seed0"}
    assert "rates/wild baseline seed 0: The 'loss' part" in capsys.readouterr().err


def test_levels_with_other_data_do_not_share_batches(tmp_path: Path) -> None:
    """Side by side each trains as it would alone."""

    def flatter(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, ratio=10.0))

    levels = (Level(name="50", change=unchanged), Level(name="10", change=flatter))
    options: dict[str, Any] = {"base": "demo", "factor": "ratio", "reference": "50"}
    sweep = Sweep(name="ratios", levels=levels, baseline="each", **options)
    for name, together in (("alone", 1), ("together", 4)):
        train(tmp_path / name, sweep=sweep, seeds=[0], together=together)
    found = sorted((tmp_path / "alone").rglob("seed0"))
    assert len(found) == 4
    for folder in found:
        other = tmp_path / "together" / folder.relative_to(tmp_path / "alone")
        assert metrics(folder) == metrics(other)
