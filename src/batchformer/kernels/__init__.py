"""Triton kernels for what a GPU's own libraries do slowly, and the choice of when to use them.

Only `available` is imported without Triton; the modules with kernels are imported where they run.
"""

from __future__ import annotations

from batchformer.kernels.available import disabled

__all__ = ["disabled"]
