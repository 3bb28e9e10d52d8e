"""Two nodes are told what to do, and their runs are compared; that they run is in the soak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from batchformer.lab.engine import checkpoint
from soak.nodes import agent, apart, command, descendants, free_port


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


def test_one_node_is_where_all_meet(tmp_path: Path) -> None:
    port = free_port()
    lines = [agent(node, port, command(tmp_path)) for node in range(2)]
    assert [line[line.index("--rdzv-conf") + 1] for line in lines] == ["is_host=1", "is_host=0"]
    assert all(f"127.0.0.1:{port}" in line and "--max-restarts" in line for line in lines)
    assert lines[0][-2:] == ["--runs", str(tmp_path)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
def test_processes_that_a_process_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    started = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        found: list[int] = []
        while not found:
            found = [*descendants(started.pid)]
        assert found and os.getpid() not in found
        assert set(found) <= set(descendants(os.getpid()))
    finally:
        started.communicate(b"\n", timeout=30)
