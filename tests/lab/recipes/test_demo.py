"""The demonstration learns: measured, not hoped."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from batchformer.lab.recipes.small import demo
from batchformer.lab.runs.compare import run


def test_the_baseline_reaches_85_percent_on_a_balanced_test_part(tmp_path: Path) -> None:
    recipe = demo().changed(train={"figures": False})
    folder = run(recipe, "baseline", 0, root=tmp_path, device=torch.device("cpu"), quiet=True)
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    assert metrics["mean_class"] >= 85
