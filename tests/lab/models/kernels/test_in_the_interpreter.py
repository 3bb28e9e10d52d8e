"""The kernels of this folder in Triton's interpreter.

Triton chooses it when it is imported, so the tests run again in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)})


def test_all_kernels() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ["-p", "no:cacheprovider", "-m", "gpu", "-k", "not compiled", "-rA"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, FILES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    assert all(any(f"/{file.name}::" in line for line in passed) for file in FILES), done.stdout
    assert "skipped" not in done.stdout, done.stdout
