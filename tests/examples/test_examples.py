"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import batchformer

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> list[str]:
    """The lines that an example prints; its working folder is its own, and it has no network."""
    source = str(Path(batchformer.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def validation_losses(lines: list[str]) -> list[float]:
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("epoch")]


def test_plain_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    lines = run("plain_pytorch.py", tmp_path)
    assert lines[0].startswith("BatchFormer attached before '6' (256 channels)")
    assert "BatchFormer is acting." in lines
    losses = validation_losses(lines)
    assert losses[-1] < 0.5 * losses[0]
    last = r"accuracy (.*)%, on the three rarest digits (.*)%; saved runs.digits\.pt"
    found = re.fullmatch(last, lines[-1])
    assert found, lines[-1]
    assert float(found[1]) > 70
    assert float(found[2]) > 30
    state = torch.load(tmp_path / "runs" / "digits.pt", weights_only=True)
    assert list(state) == [f"{layer}.{part}" for layer in (0, 2, 6) for part in ("weight", "bias")]


def test_timm_finetune(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("sklearn")
    lines = run("timm_finetune.py", tmp_path)
    assert lines[0].startswith("BatchFormer attached before 'fc'")
    assert "BatchFormer is acting." in lines
    losses = validation_losses(lines)
    assert losses[-1] < losses[0]
    found = re.fullmatch(r"accuracy (.*)% with ResNet, BatchFormer taken away", lines[-1])
    assert found, lines[-1]
    assert float(found[1]) > 90
