"""Kernels run compiled on a GPU, and interpreted on the CPU in processes of their own."""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here: tests with "compiled" in their names need a GPU."""
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if "compiled" in item.name:
        pytest.skip("needs a CUDA device")
    if not INTERPRETED:
        pytest.skip("test_in_the_interpreter.py runs it")
