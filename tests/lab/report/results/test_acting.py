from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.report.results.comparison import compare_runs
from batchformer.lab.report.results.configuration import comparable, one_group
from batchformer.lab.report.results.notes import acting_notes, decay_of_encoder
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.report.results.sweeps import compare_sweep, split_sweeps

Writer = Callable[..., Any]


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


def test_an_encoder_that_decayed_away_is_said(
    write_run: Writer, recipe_of: Writer, runs_root: Path
) -> None:
    recipe = recipe_of(optim=DECAYING)
    for seed in range(3):
        write_run("baseline", seed, recipe=recipe)
        looked_at(write_run("batchformer", seed, recipe=recipe), 2e-5)
        looked_at(write_run("batchformer_frozen", seed, recipe=recipe), 0.2)
        # The control: as it should be.
        looked_at(write_run("batchformer_self", seed, recipe=recipe), 0.0)
    runs = find_runs(runs_root)
    (note,) = acting_notes(one_group(runs))
    assert "in batchformer of tail: " in note and "no more than about 0.00004, on average" in note
    assert "optim.module-weight-decay" in note
    for reference in ("baseline", "batchformer"):
        (compared,) = compare_runs(runs, reference).recipes
        assert note in compared.warnings


def test_small_gradients_without_decay_have_other_reasons(
    write_run: Writer, recipe_of: Writer, runs_root: Path
) -> None:
    """A classifier at its beginning, a loss near 0: only decay takes an encoder away."""
    for change in ({"weight_decay": 0.0}, {"module_weight_decay": 0.0}, {"name": "lars"}):
        recipe = recipe_of(f"with_{next(iter(change))}", optim=DECAYING | change)
        looked_at(write_run("batchformer", 0, recipe=recipe), 2e-5)
    assert all(not acting_notes(group) for group in comparable(find_runs(runs_root)))


def test_the_exponent_of_decay_by_hand(
    write_run: Writer, recipe_of: Writer, runs_root: Path
) -> None:
    """A weight without gradient under torch's SGD, momentum and decay."""
    recipe = recipe_of(optim=DECAYING, module__lr_factor=0.5)
    write_run("batchformer", 0, recipe=recipe)
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9, weight_decay=0.005)
    for _ in range(400):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    exponent = decay_of_encoder(find_runs(runs_root))
    assert exponent == pytest.approx(1.0)
    assert -math.log(weight.item()) == pytest.approx(exponent, rel=0.03)


def test_a_sweep_says_it_of_the_level(make_sweep: Writer, tmp_path: Path) -> None:
    root = make_sweep(tmp_path, {("batchformer", v): {0: {"all": 50.0}} for v in ("1", "2")})
    for path in root.rglob("config.json"):
        config = json.loads(path.read_text())
        config["recipe"]["optim"] = config["trained"]["optim"] = DECAYING
        path.write_text(json.dumps(config))
        looked_at(path.parent, 2e-5 if "/2/" in str(path) else 0.2)
    (sweep,), _ = split_sweeps(find_runs(root))
    (note,) = [line for line in compare_sweep(sweep).warnings if "hardly reach" in line]
    assert "in batchformer of level 2:" in note


def test_runs_that_were_not_looked_at_say_nothing(write_run: Writer, runs_root: Path) -> None:
    for arm in ("baseline", "batchformer"):
        write_run(arm, 0)
    assert acting_notes(one_group(find_runs(runs_root))) == []
