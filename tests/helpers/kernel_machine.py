"""Kernels run compiled on a GPU, and interpreted on the CPU in processes of their own.

The conftest of each folder of kernels imports what stands here.
"""

from __future__ import annotations

import os

import pytest
import torch

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here: tests with "compiled" in their names need a GPU."""
    if item.get_closest_marker("gpu") is None or ON_GPU:
        return
    if "compiled" in item.name:
        pytest.skip("needs a CUDA device")
    if not INTERPRETED:
        pytest.skip("test_in_the_interpreter.py runs it")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run."""
    return torch.device("cuda" if ON_GPU else "cpu")
