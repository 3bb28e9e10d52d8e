"""How pixels are cut into tiles and chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from batchformer.lab.models.kernels.batch_norm import (
    MERGE_CHUNKS,
    chunks_of,
    merged_at_once,
    shape_of,
)

CPU = torch.device("cpu")


def test_channels_are_padded_and_rows_fill_the_tile() -> None:
    assert shape_of(torch.zeros(2, 24, 3, 5), 2048) == (24, 30, 32, 64)
    assert shape_of(torch.zeros(2, 1000, 1, 1), 512) == (1000, 2, 1024, 1)


@given(st.integers(1, 10**6), st.sampled_from([1, 16, 128]))
def test_chunks_hold_every_row_once(pixels: int, rows: int) -> None:
    tiles, chunks = chunks_of(pixels, rows, CPU)
    assert (chunks - 1) * tiles * rows < pixels <= chunks * tiles * rows
    assert chunks <= 16, "as many programs as the device has room for"


@given(st.integers(1, 10**5))
def test_chunks_are_merged_by_a_power_of_two(chunks: int) -> None:
    found = merged_at_once(chunks)
    assert found & (found - 1) == 0 and found <= MERGE_CHUNKS
    assert found >= min(chunks, MERGE_CHUNKS)
