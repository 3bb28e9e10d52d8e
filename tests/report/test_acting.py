from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.report.acting import acting_notes
from batchformer.report.comparison import compare_runs
from batchformer.report.configuration import one_group
from batchformer.report.runs import find_runs

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


def test_an_encoder_that_decayed_away_is_said(write_run: Writer, runs_root: Path) -> None:
    for seed in range(3):
        write_run("baseline", seed)
        looked_at(write_run("batchformer", seed), 2e-5)
        looked_at(write_run("batchformer_frozen", seed), 0.2)
        looked_at(write_run("batchformer_self", seed), 0.0)  # the control: as it should be
    group = one_group(find_runs(runs_root))
    (note,) = acting_notes(group)
    assert "in batchformer: " in note and "at most about 0.00004" in note
    assert "optim.module-weight-decay" in note
    (recipe,) = compare_runs(find_runs(runs_root)).recipes
    assert note in recipe.warnings


def test_runs_that_were_not_looked_at_say_nothing(write_run: Writer, runs_root: Path) -> None:
    for arm in ("baseline", "batchformer"):
        write_run(arm, 0)
    assert acting_notes(one_group(find_runs(runs_root))) == []
