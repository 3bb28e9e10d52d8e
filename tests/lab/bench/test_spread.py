"""Medians, quartiles and the interval of a median."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from batchformer.lab.bench.measure import Spread, median_interval, spread_of

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(numbers)
def test_quartiles_are_numpys(values: list[float]) -> None:
    found = spread_of(values)
    expected = np.percentile(values, [25, 50, 75])
    assert [found.low, found.median, found.high] == pytest.approx(list(expected), abs=1e-6)
    assert found.rounds == len(values)


def test_a_falling_change_exchanges_the_quartiles() -> None:
    assert Spread(2.0, 1.0, 4.0, 5).through(lambda ms: 8 / ms) == Spread(4.0, 2.0, 8.0, 5)


@given(st.integers(6, 200))
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    low, high = median_interval([float(i) for i in range(n)])
    assert low + high == n - 1  # as far from either end
    outside = 2 * binom.cdf(low, n, 0.5)
    assert outside <= 0.05 < 2 * binom.cdf(low + 1, n, 0.5)


def test_too_few_values_give_all_of_them() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
