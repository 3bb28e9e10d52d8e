"""What is seen of runs: kept at their end, and made again of a folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.commands.results import print_report
from batchformer.engine import log
from batchformer.recipes.compare import run
from batchformer.recipes.demo import demo
from batchformer.recipes.insight import insight_of
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.rotated_digits import rotated_digits_erm

CPU = torch.device("cpu")


def short(recipe: Recipe, **train: Any) -> Recipe:
    options = {"updates": 8, "epochs": 0, "eval_every": 4, **train}
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **options))


def arrays(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as found:
        return dict(found)


def test_a_run_keeps_it_and_a_folder_gives_it_again(tmp_path: Path) -> None:
    """Of the mean of weights, which is what is scored; its loss changes with the epoch."""
    recipe = dataclasses.replace(
        demo(), method="ldam", hyper=dataclasses.replace(demo().hyper, reweight_epoch=0)
    )
    folder = run(short(recipe, ema=0.5), "batchformer", 2, root=tmp_path, device=CPU, quiet=True)
    file = folder / "insight.npz"
    kept = arrays(file)
    counts = arrays(folder / "figures.npz")["train_counts"]
    assert kept["train_counts"].tolist() == counts.tolist()
    assert kept["reliability_correct"][0].sum() == arrays(folder / "figures.npz")["correct"].sum()
    file.unlink()
    assert insight_of(folder, CPU) == file
    again = arrays(file)
    assert set(again) == set(kept)
    for name, value in kept.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_arms_are_seen_on_the_same_images(tmp_path: Path) -> None:
    found = {}
    for arm, seed in (("baseline", 0), ("batchformer", 1)):
        folder = run(short(demo()), arm, seed, root=tmp_path, device=CPU, quiet=True)
        found[arm] = arrays(folder / "insight.npz")
    assert "attention" in found["batchformer"] and "attention" not in found["baseline"]
    for name in ("cam_rows", "cam_thumbnails", "projection_labels"):
        assert np.array_equal(found["baseline"][name], found["batchformer"][name])


def test_a_failure_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("batchformer.insight.keep.look", fails)
    folder = run(short(demo()), "batchformer", 0, root=tmp_path, device=CPU, quiet=True)
    assert json.loads((folder / "result.json").read_text())["metrics"]["all"] >= 0
    assert not (folder / "insight.npz").exists()
    said = capsys.readouterr().err
    assert said.count("no figures of relations: RuntimeError: no room") == 1
    assert insight_of(folder, CPU) is None


@pytest.mark.usefixtures("three_angles")
def test_every_target_has_its_own(tmp_path: Path) -> None:
    recipe = short(rotated_digits_erm(), eval_every=0)
    folder = run(recipe, "batchformer", 0, root=tmp_path, device=CPU, quiet=True)
    for target in ("r0", "r45", "r75"):
        kept = arrays(folder / target / "insight.npz")
        assert kept["gradient_samples"].sum() == kept["reliability_count"][0].sum() > 0
    assert insight_of(folder / "r45", CPU) == folder / "r45" / "insight.npz"
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        insight_of(tmp_path, CPU)


def test_a_person_is_told_that_figures_are_measured_and_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "EVERY_S", 0.0)
    run(short(demo()), "batchformer", 0, root=tmp_path, device=CPU)
    seen = capsys.readouterr()
    assert "demo batchformer seed 0: measuring figures on 500 test images" in seen.err
    assert "--train.no-figures" in seen.err
    told = [line for line in seen.out.splitlines() if ": figures: " in line]
    steps = [line.removeprefix("demo batchformer seed 0: figures: ") for line in told]
    total = 4 + 1 + 3  # batches of 125, one of Grad-CAM, three to explore
    assert steps == [f"{done}/{total}" for done in range(1, total + 1)]


def test_figures_can_be_left_out_which_is_recorded_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = short(demo(), figures=False)
    folders = [
        run(recipe, arm, 0, root=tmp_path, device=CPU) for arm in ("baseline", "batchformer")
    ]
    assert "figures" not in capsys.readouterr().err
    config = json.loads((folders[1] / "config.json").read_text())
    assert config["trained"]["train"]["figures"] is False
    assert not (folders[1] / "insight.npz").exists()
    page = tmp_path / "page.html"
    print_report(folders, page)
    words = "left out by --train.no-figures"
    assert words in " ".join(capsys.readouterr().out.split()) and words in page.read_text()
    # A run with figures is the same run; and they can be measured later.
    assert run(short(demo()), "baseline", 0, root=tmp_path, device=CPU, quiet=True) == folders[0]
    for folder in folders:
        insight_of(folder, CPU)
    print_report(folders, page)
    assert words not in " ".join(capsys.readouterr().out.split())
