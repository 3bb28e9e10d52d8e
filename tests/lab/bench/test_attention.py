"""The candidates compute the same layer; its time and memory by size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from batchformer.kernels.available import unsupported_reason
from batchformer.lab.bench import attention as bench
from batchformer.lab.bench.attention import STOCK, WHOLE, Layer, forced_path, measure
from batchformer.lab.bench.growth import fitted_exponent
from batchformer.lab.bench.growth import measure as measure_growth
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Spread
from batchformer.nn import attention, encoder
from batchformer.nn.attention import Path

CPU = torch.device("cpu")
ONCE = BenchSettings(CPU, repeats=1)


def test_a_small_measurement() -> None:
    table = measure(ONCE, ((8, 8), (16, 8)))
    names = [STOCK, "batch_former (explicit)", "by fused", "by blockwise"]
    assert [row[:3] for row in table.rows] == [(n, 8, name) for n in (8, 16) for name in names]
    for stock, *others in (table.rows[:4], table.rows[4:]):
        assert isinstance(stock[3], Spread) and stock[3].median > 0 and stock[4] is None
        for row in others:
            ratio = stock[3].median / row[3].median  # type: ignore[union-attr]
            assert row[4].median == pytest.approx(ratio)  # type: ignore[union-attr]
    assert table.environment["dtype"] == "float32"


def test_large_sizes_leave_the_other_paths_to_a_full_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "OWN_PATH_ALONE", 64)
    assert len(measure(ONCE, ((8, 8),)).rows) == 2
    full = BenchSettings(CPU, full=True, repeats=1)
    assert len(measure(full, ((8, 8),)).rows) == 4


def test_an_error_leaves_the_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Layer.forward_by

    def broken(self: Layer, path: Path) -> Tensor:
        if len(self.x) == 8:
            raise RuntimeError("not today")
        return original(self, path)

    monkeypatch.setattr(Layer, "forward_by", broken)
    table = measure(ONCE, ((8, 8), (16, 8)))
    assert [row[0] for row in table.rows] == [8, 8, 16, 16, 16, 16]
    assert sum("at N 8 x C 8 was not measured: not today" in note for note in table.notes) == 2


def test_every_path_and_torchs_layer_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "DROPOUT", 0.0)
    made = Layer(12, 16, CPU, torch.float32)
    assert made.x.std() > 0.5 and made.gradient.std() > 0.5
    expected = made.with_backward(made.forward_stock)
    assert len(expected) == 13
    assert made.chosen == "explicit" and sorted(made.others) == ["blockwise", "fused"]
    by_path = [partial(made.forward_by, path) for path in made.others]
    forwards: list[Callable[[], Tensor]] = [made.forward_ours, *by_path]
    for forward in forwards:
        found = made.with_backward(forward)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_a_path_is_taken_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made, taken = Layer(6, 8, CPU, torch.float32), list[str]()

    def blockwise(q: Tensor, *_: object, **__: object) -> Tensor:
        taken.append("blockwise")
        return q

    monkeypatch.setattr(attention, "blockwise_attention", blockwise)
    made.forward_by("blockwise")
    assert taken == ["blockwise"] and vars(encoder)["attention"] is attention.attention
    made.forward_ours()
    assert taken == ["blockwise"]
    with pytest.raises(ValueError, match="inside"), forced_path("fused"):
        raise ValueError("inside")
    assert vars(encoder)["attention"] is attention.attention


def test_a_layer_without_a_choice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def whole(x: Tensor, *_: object, **__: object) -> Tensor:
        seen.append(unsupported_reason(x))
        return x

    monkeypatch.setattr(bench, "batch_former", whole)
    made = Layer(6, 8, CPU, torch.float32)
    assert made.chosen == WHOLE and sorted(made.others) == ["blockwise", "explicit", "fused"]
    with pytest.raises(RuntimeError, match="so fused cannot be forced"):
        made.forward_by("fused")
    assert seen[-1] == "kernels are disabled" != seen[0]


# Growth with the batch.


points = st.lists(
    st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e6)), min_size=2, unique_by=lambda p: p[0]
)


@given(points)
def test_the_exponent_is_the_slope_of_least_squares(found: list[tuple[int, float]]) -> None:
    x, y = np.log(np.array(found)).T
    assert fitted_exponent(found) == pytest.approx(np.polyfit(x, y, 1)[0], rel=1e-4, abs=1e-4)


def test_growth_measured() -> None:
    settings = BenchSettings(torch.device("cpu"), repeats=1)
    table = measure_growth(settings, sizes=(64, 128, 256, 512), channels=8)
    assert [row[0] for row in table.rows] == [64, 128, 256, 512, "exponent"]
    upper = table.rows[2:4]
    assert "from 256 to 512" in table.notes[-1]
    for column in (4, 5):  # bytes saved: quadratic in N, since C is small
        ratio = upper[1][column] / upper[0][column]  # type: ignore[operator]
        assert table.rows[-1][column] == pytest.approx(np.log2(ratio)) and 3.5 < ratio < 4
    assert all(row[1].median > 0 for row in table.rows[:4])  # type: ignore[union-attr]


def test_few_sizes_have_no_exponent() -> None:
    settings = BenchSettings(torch.device("cpu"), repeats=1)
    assert len(measure_growth(settings, sizes=(8, 16), channels=8).rows) == 2
