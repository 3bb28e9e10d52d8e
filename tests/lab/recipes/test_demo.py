"""The demonstration learns: measured, not hoped."""

from __future__ import annotations

from pathlib import Path

import torch

from batchformer.lab.recipes.small import demo
from batchformer.lab.runs.compare import run
from helpers.lab_runs import metrics_of


def test_the_baseline_reaches_85_percent_on_a_balanced_test_part(tmp_path: Path) -> None:
    recipe = demo().changed(train={"figures": False})
    folder = run(recipe, "baseline", 0, root=tmp_path, device=torch.device("cpu"), quiet=True)
    assert metrics_of(folder)["mean_class"] >= 85
