"""All kernels of this folder in Triton's interpreter.

Triton chooses it when it is imported, so the tests run again in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)
#: The interpreter compiles nothing.
FILES = sorted(set(HERE.parent.glob("test_*.py")) - {HERE, HERE.with_name("test_compile.py")})


def test_all_kernels() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ["-p", "no:cacheprovider", "-m", "gpu", "-k", "not compiled"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, FILES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout
