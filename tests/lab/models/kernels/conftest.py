"""What tests of kernels share."""

from __future__ import annotations

from helpers.kernel_machine import device, pytest_runtest_setup

__all__ = ["device", "pytest_runtest_setup"]
