"""Rank correlation against scipy, and its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from batchformer.insight.figures.rank_correlation import Correlation, correlation, rank_correlation


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_it_is_spearmans_with_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, dtype=float).T
    found = float(rank_correlation(x, y))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(float(stats.spearmanr(x, y).statistic))


def test_samples_of_classes_are_ranked_as_if_each_were_sorted_by_itself() -> None:
    generator = np.random.default_rng(0)
    x, y, z = generator.integers(0, 12, (3, 20)).astype(float)
    times = generator.multinomial(20, np.full(20, 0.05), size=5)
    rows = [np.repeat(np.arange(20), row) for row in times]
    expected = [float(stats.spearmanr(x[row], y[row]).statistic) for row in rows]
    assert rank_correlation(x, y, times=times) == pytest.approx(expected)
    left = [by_residuals(x[row], y[row], z[row]) for row in rows]
    assert rank_correlation(x, y, z, times=times) == pytest.approx(left)


def test_the_bootstrap_over_classes_agrees_with_scipys() -> None:
    generator = np.random.default_rng(2)
    counts = np.arange(40.0)
    values = -0.06 * counts + generator.normal(size=40)
    found = correlation(counts, values[None]).over_classes
    theirs = stats.bootstrap(
        (counts, values),
        lambda x, y: stats.spearmanr(x, y).statistic,
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=600,
        random_state=np.random.default_rng(3),
    ).confidence_interval
    assert found == pytest.approx((theirs.low, theirs.high), abs=0.04)


def by_residuals(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> float:
    """Correlation of what lines through the ranks of z leave of the ranks of x and of y."""
    ranks = [stats.rankdata(side) for side in (x, y, z)]
    line = np.stack([np.ones(len(z)), ranks[2]], 1)
    left = [side - line @ np.linalg.lstsq(line, side, rcond=None)[0] for side in ranks[:2]]
    return float(np.corrcoef(*left)[0, 1])


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=5, max_size=30))
def test_the_partial_one_is_that_of_residuals(rows: list[tuple[int, int, int]]) -> None:
    x, y, z = np.array(rows, dtype=float).T
    found = float(rank_correlation(x, y, z))
    among = [abs(float(rank_correlation(side, z))) for side in (x, y)]
    if not all(rho < 1 - 1e-9 for rho in among):  # also where one is not a number
        assert np.isnan(found)
    else:
        assert found == pytest.approx(by_residuals(x, y, z), abs=1e-6)


def test_a_gradient_of_accuracy_alone_has_nothing_left_and_one_of_counts_alone_stays() -> None:
    generator = np.random.default_rng(4)
    counts = np.arange(200.0)
    accuracy = counts + generator.normal(0, 80, (3, 200))
    noise = generator.normal(0, 20, (3, 200))
    by_accuracy, by_count = noise - accuracy, noise - counts
    assert correlation(counts, by_accuracy).is_negative is True
    left = correlation(counts, by_accuracy, accuracy)
    assert left.rho == pytest.approx(0, abs=0.1) and left.is_negative is None
    stays = correlation(counts, by_count, accuracy)
    assert stays.rho is not None and stays.rho < -0.8 and stays.is_negative is True
    each = [by_residuals(counts, g, a) for g, a in zip(by_count, accuracy, strict=True)]
    assert stays.by_seed == pytest.approx(each)
    interval = stats.ttest_1samp(each, 0).confidence_interval(0.95)
    assert stays.over_seeds == pytest.approx((interval.low, interval.high))
    draws = np.random.default_rng(5).integers(200, size=(200, 200))
    means = [
        np.mean(
            [by_residuals(counts[d], g[d], a[d]) for g, a in zip(by_count, accuracy, strict=True)]
        )
        for d in draws
    ]
    assert stays.over_classes == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)


def population(
    generator: np.random.Generator, classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (K,), gradients (3, K) and accuracies (3, K): half of a gradient is a seed's noise."""
    counts = generator.normal(size=classes)
    accuracy = counts + generator.normal(0, 0.8, classes) + generator.normal(0, 0.5, (3, classes))
    shared = -0.7 * counts + generator.normal(0, 0.5, classes)
    return counts, shared + generator.normal(0, 0.7, (3, classes)), accuracy


@pytest.mark.parametrize("partial", [False, True])
def test_seeds_that_agree_leave_the_interval_over_classes_as_wide_as_one(partial: bool) -> None:
    """A draw of classes is the same for every seed: more seeds are not more classes."""
    counts, values, accuracy = population(np.random.default_rng(11), 30)
    one, three = (
        correlation(counts, values[rows], accuracy[rows] if partial else None)
        for rows in ([0], [0, 0, 0])
    )
    assert one.over_classes is not None
    assert three.over_classes == pytest.approx(one.over_classes)


def test_a_partial_correlation_of_few_classes_has_no_interval_over_them() -> None:
    for classes in (9, 10):
        counts, values, accuracy = population(np.random.default_rng(8), classes)
        found = correlation(counts, values, accuracy)
        assert found.rho is not None
        assert (found.over_classes is None) == (classes < 10)


def test_classes_that_only_some_seeds_measured_count_where_they_were_measured() -> None:
    counts, values, _ = population(np.random.default_rng(9), 30)
    values[0, :5], values[1, 10:] = np.nan, np.nan
    found = correlation(counts, values)
    measured = [np.isfinite(row) for row in values]
    draws = np.random.default_rng(10).integers(30, size=(200, 30))
    means = []
    for draw in draws:
        rows = [draw[known[draw]] for known in measured]
        each = [
            stats.spearmanr(counts[row], v[row])[0] for row, v in zip(rows, values, strict=True)
        ]
        means.append(np.mean(each))
    each = [stats.spearmanr(counts[k], v[k])[0] for k, v in zip(measured, values, strict=True)]
    assert found.rho == pytest.approx(np.mean(each))
    assert found.over_classes == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.05)


def test_what_one_order_leaves_and_what_few_classes_say_is_nothing() -> None:
    counts, values = np.arange(10.0), np.random.default_rng(6).normal(size=(2, 10))
    nothing = Correlation(None, (), None, None)
    assert correlation(counts, values, -values) == nothing
    assert correlation(counts, values, np.ones((2, 10))) == nothing
    assert correlation(counts[:4], values[:, :4], values[::-1, :4]) == nothing
    unknown = values[::-1].copy()
    unknown[:, 2] = np.nan
    known = np.arange(10) != 2
    found = correlation(counts, values, unknown)
    assert found.rho == correlation(counts[known], values[:, known], unknown[:, known]).rho


def test_few_seeds_or_classes_have_no_interval_of_their_kind() -> None:
    counts = np.arange(4.0)
    found = correlation(counts, np.array([[4.0, 3.0, 2.0, 1.0]] * 2))
    assert found == Correlation(-1.0, (-1.0, -1.0), None, None)
    assert found.is_negative is None


@pytest.mark.parametrize(
    ("seeds", "classes", "negative"),
    [
        ((-0.9, -0.2), (-0.8, -0.1), True),
        ((-0.9, -0.2), (-0.8, 0.1), None),
        ((0.1, 0.3), (0.2, 0.3), False),
        (None, (-0.8, -0.1), True),
        ((-0.5, 0.5), None, None),
        (None, None, None),
    ],
)
def test_the_claim_holds_where_every_interval_lies_below_zero(
    seeds: tuple[float, float] | None, classes: tuple[float, float] | None, negative: bool | None
) -> None:
    assert Correlation(-0.5, (-0.5,), seeds, classes).is_negative is negative
