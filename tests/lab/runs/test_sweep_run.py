"""Sweeps on the digits: layout, pairing, what is kept and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.distributed import rank_zero
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes.sweeps import SWEEPS, Sweep
from batchformer.lab.runs import sweep as sweep_run
from batchformer.lab.runs.folder import RECORD
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.sweep import run_sweep, runs_of_sweep
from helpers.lab_runs import bytes_of, compare, config_of, metrics_of, short, train_one

CPU = torch.device("cpu")
DEPTH = SWEEPS["demo_layers"]


def train(root: Path, base: Recipe | None = None, sweep: Sweep = DEPTH, **options: Any) -> set[str]:
    chosen: dict[str, Any] = {"levels": sweep.level_names[:2], "seeds": [0, 1], **options}
    together, base = chosen.pop("together", 1), base or short()
    runs = runs_of_sweep(sweep, base, root=root, **{"arms": ["batchformer"], **chosen})
    folders = run_sweep(sweep, base, runs, root, quiet=True, together=together)
    return {folder.relative_to(root).as_posix() for folder in folders}


def test_levels_are_ordinary_runs_side_by_side_or_not(tmp_path: Path) -> None:
    cells = ("1/baseline", "1/batchformer", "2/batchformer")
    expected = {f"demo_layers/{cell}/seed1" for cell in cells}
    assert train(tmp_path / "a", seeds=[1]) == expected
    assert train(tmp_path / "b", seeds=[1], together=4) == expected
    for name in expected:
        assert metrics_of(tmp_path / "a" / name) == metrics_of(tmp_path / "b" / name)
    config = config_of(tmp_path / "a/demo_layers/2/batchformer/seed1")
    assert config["trained"]["module"]["layers"] == 2 and config["seed"] == 1
    plain = train_one(short(), "batchformer", 1, root=tmp_path)
    assert metrics_of(plain) == metrics_of(tmp_path / "a/demo_layers/1/batchformer/seed1")


def test_a_folder_has_one_base(tmp_path: Path) -> None:
    train(tmp_path, seeds=[0], levels=["1"])
    with pytest.raises(ValueError, match=r"begun with other settings: train\.updates was 6, is 7"):
        train(tmp_path, short(updates=7), seeds=[0], levels=["2"])
    assert not (tmp_path / "demo_layers/2").exists()


def test_a_sweep_that_trained_nothing_does_not_hold_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no such network")

    with monkeypatch.context() as patch:
        patch.setattr("batchformer.lab.runs.sweep.train_all", fails)
        with pytest.raises(OSError, match="no such network"):
            train(tmp_path, seeds=[0], levels=["1"])
    path = tmp_path / "demo_layers/sweep.json"
    assert json.loads(path.read_text())["base"]["train"]["updates"] == 6
    submitted = path.with_name(RECORD)
    submitted.touch()
    with pytest.raises(ValueError, match="begun with other settings"):
        train(tmp_path, short(updates=7), seeds=[0], levels=["1"])
    submitted.unlink()
    train(tmp_path, short(updates=7), seeds=[0], levels=["1"])
    assert json.loads(path.read_text())["base"]["train"]["updates"] == 7


ARMS = ("baseline", "batchformer")


@pytest.fixture(scope="module")
def base_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a comparison of the base leaves."""
    root = tmp_path_factory.mktemp("compared")
    list(compare(short(), ARMS, [0, 1], root=root))
    return root


@pytest.fixture
def root(base_runs: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(base_runs, tmp_path / "runs"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the runs that are trained, not merely found."""
    titles: list[str] = []
    original = Run.training

    def training(one: Run, *args: Any, **options: Any) -> Any:
        titles.append(one.title)
        return original(one, *args, **options)

    monkeypatch.setattr(Run, "training", training)
    return titles


def test_what_a_comparison_of_the_base_trained_is_taken_over(
    root: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(train(root)) == 6
    assert trained == [f"demo_layers/2 batchformer seed {seed}" for seed in (0, 1)]
    names = [f"demo/{arm}/seed{seed}" for seed in (0, 1) for arm in ARMS]
    line = f"4 runs were trained before and reused: {', '.join(names)}\n"
    assert capsys.readouterr().err == line
    for name in names:
        reused = root / name.replace("demo", "demo_layers/1")
        before, after = bytes_of(root / name), bytes_of(reused)
        old, new = (json.loads(files.pop("config.json")) for files in (before, after))
        assert before == after and {"result.json", "metrics.jsonl", "figures.npz"} < before.keys()
        assert new["taken_from"] == name and new["provenance"] == old["provenance"]
        for part in ("recipe", "trained"):
            assert new[part]["name"] == "demo_layers/1" and "layers: 1" in new[part]["summary"]
            changed = {key for key in new[part] if new[part][key] != old[part][key]}
            assert changed <= {"name", "summary", "table", "paper"}
    train(root)
    assert len(trained) == 2 and capsys.readouterr().err == "", "all is there"


def test_runs_from_a_relative_file_of_weights_are_taken_over(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(build_model("digits_net", 10).state_dict(), "digits.pth")
    base = short().changed(weights="digits.pth")
    train_one(base, "baseline", 0, root=tmp_path)
    train(tmp_path, base, arms=["baseline"], levels=["1"], seeds=[0])
    assert trained == ["demo baseline seed 0"]


def test_another_sweep_has_them_as_well(
    root: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The one who trained them is named, also where they pass through several hands."""
    train(root, levels=["1", "2"], seeds=[0])
    shutil.rmtree(root / "demo")
    other = dataclasses.replace(DEPTH, name="depth_again")
    capsys.readouterr()
    trained.clear()
    train(root, sweep=other, levels=["1", "2", "4"], seeds=[0])
    assert trained == ["depth_again/4 batchformer seed 0"]
    assert "3 runs were trained before" in capsys.readouterr().err
    origins = [
        config_of(root / "depth_again" / f"{level}/batchformer/seed0")["taken_from"]
        for level in ("1", "2")
    ]
    assert origins == ["demo/batchformer/seed0", "demo_layers/2/batchformer/seed0"]


def altered(path: Path, *keys: str, value: object) -> None:
    whole = part = json.loads(path.read_text())
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(whole))


def test_a_base_run_of_something_else_is_not_taken(
    root: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Other settings, other images under the same settings, unfinished, damaged."""
    configs = {
        name: root / "demo" / name / "config.json"
        for name in ("baseline/seed0", "batchformer/seed0", "baseline/seed1")
    }
    for part in ("recipe", "trained"):
        altered(configs["baseline/seed0"], part, "optim", "lr", value=0.5)
    altered(configs["batchformer/seed0"], "data", "split_sha256", value="0" * 64)
    (configs["baseline/seed1"].parent / "result.json").unlink()
    figures = root / "demo/batchformer/seed1/figures.npz"
    figures.write_bytes(figures.read_bytes()[:-40])
    train(root, levels=["1"])
    assert len(trained) == 4 and capsys.readouterr().err == ""
    assert not any("taken_from" in config_of(folder) for folder in root.glob("*/*/*/seed?"))


def test_settings_of_no_effect_may_be_others(root: Path, trained: list[str]) -> None:
    train(root, short(workers=3), levels=["1"])
    assert trained == []


def test_a_run_that_is_begun_goes_on_itself(root: Path, trained: list[str]) -> None:
    folder = root / "demo_layers/1/batchformer/seed0"
    train(root, levels=["1"], seeds=[0])
    (folder / "result.json").unlink()
    before = metrics_of(root / "demo/batchformer/seed0")
    train(root, levels=["1"], seeds=[0])
    assert trained == ["demo_layers/1 batchformer seed 0"] and metrics_of(folder) == before
    assert metrics_of(root / "demo/batchformer/seed0") == before
    assert list((root / "demo/batchformer/seed0/checkpoints").glob("*.pt")), "shared, not moved"


def test_the_first_rank_takes_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero, "on_rank_zero", lambda make: None)
    monkeypatch.setattr(sweep_run, "train_all", lambda *_: iter(()))
    assert train(root) == set()
    assert not (root / "demo_layers").exists(), "another rank writes nothing"
