"""All kernels of this folder in Triton's interpreter.

Triton chooses it when it is imported, so the tests run again in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)
#: The interpreter compiles nothing.
FILES = sorted(set(HERE.parent.glob("test_*.py")) - {HERE.with_name("test_compile.py")})
#: Each group takes a process: files whose names start with this. The rest is a group too.
GROUPS = ("small",)


def files_of(group: str) -> list[Path]:
    own = tuple(f"test_{name}" for name in ([group] if group else GROUPS))
    return [file for file in FILES if file.name.startswith(own) == bool(group)]


@pytest.mark.parametrize("group", [*GROUPS, ""], ids=lambda group: group or "the rest")
def test_a_group_of_kernels(group: str) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ["-p", "no:cacheprovider", "-m", "gpu", "-k", "not compiled"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, files_of(group))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout


def test_every_file_is_in_one_group() -> None:
    found = [file for group in (*GROUPS, "") for file in files_of(group)]
    assert sorted(found) == FILES
