"""How far the colours of a map reach, by brute force over its cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.report.figures.attention import (
    LEAST_REACH,
    WITHIN,
    beyond,
    in_colours,
    reach_of,
)

#: Attention in single precision is nothing, or not as small as doubles can be.
ratios = st.one_of(st.sampled_from([np.nan, 0.0]), st.floats(1e-30, 100))
cell = st.tuples(ratios, st.integers(1, 50))


@given(st.lists(cell, min_size=9, max_size=9))
def test_it_is_the_least_that_holds_nearly_all_attention(cells: list[tuple[float, int]]) -> None:
    ratio, pairs = (np.array(side, dtype=float).reshape(3, 3) for side in zip(*cells, strict=True))
    reach = reach_of(ratio, pairs)
    given_to = [(abs(np.log2(r)), r * n) for r, n in cells if r > 0]
    if not given_to:
        assert reach == 1
        return
    total = sum(weight for _, weight in given_to)

    def held(limit: float) -> float:
        return sum(weight for far, weight in given_to if far <= limit) / total

    assert held(reach) >= WITHIN - 1e-9
    assert reach == LEAST_REACH or held(reach * (1 - 1e-9)) < WITHIN + 1e-9
    low, high = beyond(ratio, reach)
    assert low == bool((ratio < 2**-reach * (1 - 1e-8)).any())
    assert high == bool((ratio > 2**reach * (1 + 1e-8)).any())


def test_extremes_have_the_colour_of_the_end() -> None:
    shown = in_colours(np.array([0.0, 0.01, 1.0, 77.0, np.nan]), reach=2.0)
    assert shown == pytest.approx([-2, -2, 0, 2, np.nan], nan_ok=True)
