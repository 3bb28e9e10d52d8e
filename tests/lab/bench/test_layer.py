"""The table of a plug-in user: both layers compute the same, in each mode that runs here."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from batchformer.lab.bench.layer import OURS, STOCK, LayerPair, measure, modes
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Spread

CPU = torch.device("cpu")


def test_a_line_for_each_size_and_mode() -> None:
    table = measure(BenchSettings(CPU, repeats=1), ((8, 8), (16, 8)))
    assert [row[:4] for row in table.rows] == [(8, 8, "fp32", "eager"), (16, 8, "fp32", "eager")]
    for stock, ours, ratio in (row[4:] for row in table.rows):
        assert isinstance(stock, Spread) and isinstance(ours, Spread) and isinstance(ratio, Spread)
        assert abs(ratio.median - stock.median / ours.median) < 1e-9
    assert modes(BenchSettings(torch.device("cuda"))) == (
        *("eager", "compiled", "captured", "compiled and captured"),
    )


def test_both_layers_have_the_same_gradients_without_dropout() -> None:
    pair = LayerPair((6, 8), CPU)
    for part in pair.stock.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    pair.stock.self_attn.dropout = 0.0
    pair.ours.dropout = 0.0
    works = pair.works()
    for a, b in zip(works[STOCK](), works[OURS](), strict=True):  # type: ignore[call-overload]
        torch.testing.assert_close(a, b)


def test_every_size_is_compiled_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit on recompilations the compiler would run layers eagerly."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    with torch._dynamo.config.patch(recompile_limit=1):
        table = measure(BenchSettings(CPU, repeats=1, full=True), ((2, 8), (3, 8)))
    assert [row[3] for row in table.rows] == ["eager", "compiled"] * 2, table.notes
    assert counter.frame_count == 4
