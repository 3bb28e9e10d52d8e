"""The kernels of this folder in Triton's interpreter.

Triton chooses it when it is imported, so the tests run again in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_kernels(file: Path) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ["-p", "no:cacheprovider", "-m", "gpu", "-k", "not compiled"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout
