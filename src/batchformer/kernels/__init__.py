"""Triton kernels for operations that torch's libraries run slowly on a GPU.

:mod:`~batchformer.kernels.available` decides when to use them, and works without Triton. The files
with kernels are imported when they run.
"""

from __future__ import annotations

from batchformer.kernels.available import disabled

__all__ = ["disabled"]
