"""How runs of two nodes are compared; that they run is in the soak."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from batchformer.lab.engine import checkpoint
from soak.nodes import apart


def folder(root: Path, weight: float, score: float, loss: float) -> Path:
    root.mkdir()
    checkpoint.save(root / "checkpoints", 3, {"method": {"w": torch.tensor([weight, 1.0])}})
    (root / "result.json").write_text(json.dumps({"metrics": {"all": score}}))
    records = [{"kind": "train", "step": 3, "loss": loss}, {"kind": "eval", "step": 3, "all": 1}]
    (root / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return root


def test_how_far_runs_are_apart(tmp_path: Path) -> None:
    far = apart(folder(tmp_path / "a", 1.0, 90.0, 0.5), folder(tmp_path / "b", 1.25, 90.5, 0.375))
    assert (far.weights, far.scores, far.losses) == (0.25, 0.5, 0.125)
    other = folder(tmp_path / "c", 1.0, 90.0, 0.5)
    checkpoint.save(other / "checkpoints", 4, {"method": {"v": torch.zeros(1)}})
    with pytest.raises(ValueError, match="different networks"):
        apart(tmp_path / "a", other)
