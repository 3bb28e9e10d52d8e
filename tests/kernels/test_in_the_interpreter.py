"""All kernels, those of the laboratory too, in Triton's interpreter.

Triton chooses it when it is imported, so the tests run again in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)
FOLDERS = (HERE.parent, HERE.parents[1] / "lab/models/kernels")
#: The interpreter compiles nothing.
NEITHER = {HERE, HERE.with_name("test_compile.py")}
FILES = [file for folder in FOLDERS for file in sorted({*folder.glob("test_*.py")} - NEITHER)]


def test_all_kernels() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ["-p", "no:cacheprovider", "-m", "gpu", "-k", "not compiled", "-rA"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, FILES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    ran = {file for file in FILES if any(f"/{file.name}::" in line for line in passed)}
    assert {file.name for file in {*FILES} - ran} == {"test_available.py"}, "it has no kernel"
    assert "skipped" not in done.stdout, done.stdout
