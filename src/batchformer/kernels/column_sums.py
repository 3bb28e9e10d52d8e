"""Sums over the first axis of partial results, in a fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Columns of one program, and rows it adds at a time.
COLUMNS, ROWS = 32, 64


@triton.jit
def _sum(partial, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        total += tl.load(partial + row.to(tl.int64) * columns + column, mask=inside, other=0.0)
    here = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + here, tl.sum(total, 0).to(out.dtype.element_ty), mask=here < columns)


def column_sums(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """``(programs, ...)`` contiguous float32 to the sums ``(...)`` over the programs."""
    out = torch.empty(partial.shape[1:], dtype=dtype, device=partial.device)
    grid = (triton.cdiv(out.numel(), COLUMNS),)
    _sum[grid](partial, out, len(partial), out.numel(), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return out
