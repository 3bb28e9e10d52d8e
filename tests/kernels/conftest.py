"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.kernel_machine import ON_GPU, device, pytest_runtest_setup

__all__ = ["device", "pytest_runtest_setup"]

#: Relative error that a type may have.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


@pytest.fixture(params=TOLERANCE if ON_GPU else [torch.float32], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """A type that kernels compute in, each in turn."""
    found: torch.dtype = request.param
    return found


@pytest.fixture(scope="session")
def relative() -> Callable[[Tensor, Tensor], float]:
    """The relative error of a tensor: the norm of its difference to another over that one's."""

    def error(found: Tensor, exact: Tensor) -> float:
        found, exact = found.detach().double(), exact.detach().double()
        return float((found - exact).norm() / exact.norm())

    return error


@pytest.fixture
def assert_near(
    dtype: torch.dtype, relative: Callable[[Tensor, Tensor], float]
) -> Callable[[Tensor, Tensor], None]:
    """Assert that a tensor is as near to the exact one as the type allows that it is made in."""

    def check(found: Tensor, exact: Tensor) -> None:
        error = relative(found, exact)
        assert error < TOLERANCE[dtype], f"relative error {error:.2g}"

    return check


@pytest.fixture
def seed(device: torch.device) -> Tensor:
    """Of one mask, ``(1,)``."""
    return torch.tensor([123], device=device)


@pytest.fixture(scope="session")
def philox() -> Callable[[int, tuple[int, int, int, int]], tuple[int, ...]]:
    """The generator that masks are drawn by, in Python: four words of a seed and a counter."""

    def words(seed: int, counter: tuple[int, int, int, int]) -> tuple[int, ...]:
        """Philox 4x32 with 7 rounds of Salmon et al. (2011), as written there."""
        a, b, c, d = counter
        low, high = seed & 0xFFFFFFFF, seed >> 32
        for _ in range(7):
            left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
            a, b = (right >> 32) ^ b ^ low, right & 0xFFFFFFFF
            c, d = (left >> 32) ^ d ^ high, left & 0xFFFFFFFF
            low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
        return a, b, c, d

    return words
