"""Notes are said once, whatever the number of runs they are about."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from batchformer.lab.report.page.html import render
from batchformer.lab.report.results.comparison import compare_runs
from batchformer.lab.report.results.configuration import comparable
from batchformer.lab.report.results.notes import (
    arms_note,
    decay_of_encoder,
    inactive_encoder_notes,
    metric_notes,
    remarks_on,
    reweighting_note,
)
from batchformer.lab.report.results.runs import read_run
from helpers.run_folders import RunTree, change_json, compared_sweep, recipe_of, write_sweep


def test_what_all_runs_of_a_recipe_lack_is_one_line(tree: RunTree, no_figures: None) -> None:
    for name in ("tail", "other"):
        tree.write_pairs(3, recipe=recipe_of(name))
    for path in tree.root.rglob("figures.npz"):
        path.unlink()
    tree.write("baseline", 9, finished=False)
    runs = tree.runs()
    expected = (
        "figures.npz is missing in 6 of 6 runs (baseline seed0, baseline seed1, baseline seed2 "
        "and 3 more): not in the figures by class and by image"
    )
    assert compare_runs(runs).remarks == (f"other: {expected}", f"tail: {expected}")
    page = render(runs)
    assert page.count("figures.npz is missing") == 2 and f"tail: {expected}." in page


def test_other_runs_are_counted_and_other_remarks_stay_apart(tree: RunTree) -> None:
    folders = [tree.write("baseline", seed) for seed in range(4)]
    for folder in folders[:2]:
        (folder / "figures.npz").unlink()
    (folders[3] / "figures.npz").write_bytes(b"no archive")
    first, second = remarks_on(tree.runs())
    assert first.startswith("tail: figures.npz is missing in 2 of 4 runs (baseline seed0, ")
    assert "more" not in first
    assert second.startswith("tail/baseline/seed3: figures.npz is damaged")


def test_a_metric_that_several_runs_lack_is_one_line(tree: RunTree) -> None:
    for arm, few in (("baseline", 30.0), ("batchformer", math.nan)):
        tree.write_scores({arm: [{"all": 60.0 + seed, "few": few} for seed in range(3)]})
    (line,) = [line for line in tree.compared().warnings if "'few'" in line]
    assert line.startswith(
        "tail: 'few' was not measured in 3 of 6 runs (batchformer seed0, batchformer seed1, "
        "batchformer seed2), so these seeds are not in the means"
    )


def test_in_a_sweep_a_run_is_named_by_its_level(tmp_path: Path) -> None:
    values = {
        (arm, level): {seed: {"all": 50.0 + seed} for seed in range(3)}
        for arm, level in (("baseline", "1"), ("batchformer", "1"), ("batchformer", "2"))
    }
    for seed in (0, 2):
        values["batchformer", "2"][seed]["all"] = math.nan
    found = compared_sweep(write_sweep(tmp_path, values))
    (line,) = [line for line in found.warnings if "not measured" in line]
    assert "in 2 of 9 runs (2 batchformer seed0, 2 batchformer seed2)" in line


def test_a_metric_says_what_it_is() -> None:
    assert metric_notes(["all", "few", "ece"]) == []
    (description,) = metric_notes(["knn", "alignment", "feature_std"])
    assert "neither more nor less is better: Alignment, Feature SD" in description
    assert "not counted as comparisons" in description
    described, chosen = metric_notes(iter(["all", "alignment", "val", "val_loss"]))
    assert described.startswith("Descriptions of features") and "val" not in described
    assert chosen == (
        "Scores of validation data, which are there to choose what is reported: val, val loss. "
        "They are not tested and not counted as comparisons"
    )


@pytest.mark.parametrize("chosen_on", ["last", "val", "test"])
def test_a_choice_by_the_test_set_is_said(chosen_on: str, tree: RunTree, tmp_path: Path) -> None:
    recipe = recipe_of(train__select_on=chosen_on)
    tree.write_pairs(1, recipe=recipe)
    folder = write_sweep(tmp_path / "sweep", {("baseline", "1"): {0: {"all": 50.0}}})
    change_json(folder / "1/baseline/seed0/config.json", recipe=recipe | {"name": "depth/1"})
    for found in (tree.compared(), compared_sweep(folder)):
        said = [line for line in found.warnings if "best on the test set is reported" in line]
        assert len(said) == (chosen_on == "test")


@pytest.mark.parametrize(
    ("method", "start", "said"),
    [
        ("balanced_softmax", "", ""),
        ("crt", "first", ""),
        ("knn", "moco", "an arm names the arm of moco whose network it begins with"),
        ("detector", "", "baseline and batchformer are the same training"),
        ("linear_probe", "moco/baseline", "all begin with the network of moco/baseline"),
    ],
)
def test_arms_are_explained_where_batchformer_takes_no_part(
    method: str, start: str, said: str
) -> None:
    lines = arms_note({"method": method, "start": start}, ["baseline", "batchformer"])
    assert len(lines) == bool(said) and said in "".join(lines)
    alone = arms_note({"method": method, "start": start}, ["baseline"])
    assert alone == (lines if start == "moco" else [])


def test_a_re_weighting_that_never_began_is_said(tree: RunTree) -> None:
    tree.write("baseline", 0)  # 10 epochs
    runs = tree.runs()
    late = recipe_of("late", method="ldam", hyper={"reweight_epoch": 160})
    assert reweighting_note(late, runs) == [
        "The re-weighting of ldam begins with epoch 160, which no run reached"
    ]
    in_time = recipe_of("in_time", method="ldam", hyper={"reweight_epoch": 8})
    assert reweighting_note(in_time, runs) == []
    # An evaluation after ten epochs counts as of epoch 10, and the last update is of epoch 9.
    ends = (("train", 9), ("eval", 10))
    records = tuple({"kind": kind, "step": 400, "epoch": epoch} for kind, epoch in ends)
    ended = [dataclasses.replace(run, metrics=records) for run in runs]
    never = recipe_of("never", method="ldam", hyper={"reweight_epoch": 10})
    assert len(reweighting_note(never, ended)) == 1
    assert reweighting_note(recipe_of("none", hyper={"reweight_epoch": 160}), runs) == []


def looked_at(folder: Path, gradient: float) -> None:
    """Ten classes whose gradients on others have this length, features 2 apart."""
    np.savez(
        folder / "insight.npz",
        gradient_samples=np.full(10, 5),
        gradient_l2=np.full(10, gradient),
        projection=np.array([[1.0, 0.0], [-1.0, 0.0]] * 5),
        projection_share=np.array([0.5, 0.0]),
    )


#: 400 updates: exp(-400 * 0.1 * 0.005 / (1 - 0.9)) of a weight is left.
DECAYING = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.005}


def test_an_encoder_that_decayed_away_is_said(tree: RunTree) -> None:
    recipe = recipe_of(optim=DECAYING)
    for seed in range(3):
        tree.write("baseline", seed, recipe=recipe)
        looked_at(tree.write("batchformer", seed, recipe=recipe), 2e-5)
        looked_at(tree.write("batchformer_frozen", seed, recipe=recipe), 0.2)
        # The control: as it should be.
        looked_at(tree.write("batchformer_self", seed, recipe=recipe), 0.0)
    (note,) = inactive_encoder_notes(tree.group())
    assert "in batchformer of tail: " in note and "no more than about 0.00004, on average" in note
    assert "optim.module-weight-decay" in note
    for reference in ("baseline", "batchformer"):
        assert note in tree.compared(reference).warnings


def test_small_gradients_without_decay_have_other_reasons(tree: RunTree) -> None:
    """A classifier at its beginning, a loss near 0: only decay takes an encoder away.

    Of a run that was not looked at nothing is known.
    """
    tree.write("batchformer", 0, recipe=recipe_of("not_seen", optim=DECAYING))
    for change in ({"weight_decay": 0.0}, {"module_weight_decay": 0.0}, {"name": "lars"}):
        recipe = recipe_of(f"with_{next(iter(change))}", optim=DECAYING | change)
        looked_at(tree.write("batchformer", 0, recipe=recipe), 2e-5)
    assert all(not inactive_encoder_notes(group) for group in comparable(tree.runs()))


def test_the_exponent_of_decay_by_hand(tree: RunTree) -> None:
    """A weight without gradient under torch's SGD, momentum and decay."""
    recipe = recipe_of(optim=DECAYING, module__lr_factor=0.5)
    tree.write("batchformer", 0, recipe=recipe)
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9, weight_decay=0.005)
    for _ in range(400):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    exponent = decay_of_encoder(tree.runs())
    assert exponent == pytest.approx(1.0)
    assert -math.log(weight.item()) == pytest.approx(exponent, rel=0.03)


def test_adam_takes_an_unused_weight_away_by_any_decay(tree: RunTree) -> None:
    recipe = recipe_of(optim={"name": "adam", "lr": 0.005, "weight_decay": 1e-5})
    looked_at(tree.write("batchformer", 0, recipe=recipe), 2e-5)
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=0.005, weight_decay=1e-5)
    for _ in range(400):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert abs(weight.item()) < 0.1
    assert decay_of_encoder(tree.runs()) == math.inf and inactive_encoder_notes(tree.group())


def test_a_sweep_says_it_of_the_level(tmp_path: Path) -> None:
    root = write_sweep(tmp_path, {("batchformer", v): {0: {"all": 50.0}} for v in ("1", "2")})
    for path in root.rglob("config.json"):
        change_json(path, trained=read_run(path.parent).trained | {"optim": DECAYING})
        looked_at(path.parent, 2e-5 if "/2/" in str(path) else 0.2)
    (note,) = [line for line in compared_sweep(root).warnings if "hardly influence" in line]
    assert "in batchformer of level 2:" in note
