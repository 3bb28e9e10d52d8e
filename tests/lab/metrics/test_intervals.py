"""What a few seeds can say."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from batchformer.insight.intervals import summary
from batchformer.lab.metrics.intervals import (
    bootstrap_interval,
    holm,
    outcome,
    paired,
    pooled,
    seeds_needed,
    verdict,
)

# Hundredths of a percent point, as tables print them.
accuracies = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)
arms = st.integers(3, 8).flatmap(
    lambda n: st.tuples(*[st.lists(accuracies, min_size=n, max_size=n)] * 2)
)


def spread(baseline: list[float], other: list[float]) -> float:
    differences = [b - a for a, b in zip(baseline, other, strict=True)]
    return max(differences) - min(differences)


# Summary


@given(st.lists(accuracies, min_size=3, max_size=10))
@settings(max_examples=30)
def test_summary_equals_scipy(values: list[float]) -> None:
    assume(max(values) > min(values))
    result = summary(values)
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (result.low, result.high) == pytest.approx(expected)
    assert result.mean == pytest.approx(np.mean(values))
    assert result.sd == pytest.approx(np.std(values, ddof=1))
    assert (result.n, result.values) == (len(values), tuple(values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([61.0], (61.0, None, None, None, 1)),
        ([61.0, 63.0], (62.0, math.sqrt(2), None, None, 2)),
        ([0.1] * 3, (0.1, 0.0, 0.1, 0.1, 3)),
    ],
)
def test_summary_of_few_or_equal_values(values: list[float], expected: tuple[Any, ...]) -> None:
    found = summary(values)
    assert (found.mean, found.sd, found.low, found.high, found.n) == expected


# Paired


@given(arms)
@settings(max_examples=30)
def test_paired_equals_scipy(values: tuple[list[float], list[float]]) -> None:
    baseline, other = values
    assume(spread(baseline, other) > 1e-6)
    result = paired(baseline, other)
    differences = np.subtract(other, baseline)
    test = stats.ttest_1samp(differences, 0.0)
    interval = stats.t.interval(0.95, len(baseline) - 1, differences.mean(), stats.sem(differences))
    assert result.p_value == pytest.approx(test.pvalue)
    assert (result.low, result.high) == pytest.approx(interval)
    assert result.difference == pytest.approx(differences.mean(), abs=1e-9)
    assert result.sd == pytest.approx(differences.std(ddof=1))
    assert (result.baseline, result.other) == (tuple(baseline), tuple(other))


@pytest.mark.filterwarnings("error")
def test_identical_arms_differ_by_nothing() -> None:
    for values in ([61.0, 62.0, 63.0], [0.0, 0.0, 0.0]):
        result = paired(values, values)
        numbers = (result.difference, result.sd, result.low, result.high, result.p_value)
        assert numbers == (0.0, 0.0, 0.0, 0.0, 1.0)
        assert outcome(result) == "not reliable"


@pytest.mark.filterwarnings("error")
def test_a_constant_difference_has_no_interval() -> None:
    # In floating point these differences are not equal, only within rounding.
    baseline = [60.1, 61.3, 99.9]
    other = [value + 0.1 for value in baseline]
    assert len({b - a for a, b in zip(baseline, other, strict=True)}) > 1
    result = paired(baseline, other)
    assert (result.sd, result.low, result.high, result.p_value) == (0.0, None, None, None)
    assert verdict(result, 1.5) == "no spread: +0.10 in every seed, no interval, 3 seeds"


def test_too_few_seeds_have_no_interval() -> None:
    for n in (1, 2):
        result = paired([61.0, 62.0][:n], [63.0, 63.0][:n])
        assert (result.low, result.high, result.p_value, result.n) == (None, None, None, n)
        assert outcome(result) == "too few seeds"
    assert paired([61.0], [63.0]).sd is None
    assert paired([61.0, 62.0], [63.0, 63.0]).sd == pytest.approx(math.sqrt(0.5))


def test_unpaired_and_missing_values_are_refused() -> None:
    with pytest.raises(ValueError, match="2 baseline values and 3 others"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="empty"):
        summary([])
    with pytest.raises(ValueError, match=r"values\[1\] is nan"):
        summary([1.0, math.nan])
    with pytest.raises(ValueError, match=r"other_values\[0\] is inf"):
        paired([1.0], [math.inf])


BASELINE = [60.0, 61.0, 62.0, 63.0]


@pytest.mark.parametrize(
    ("other", "word", "lower"),
    [
        ([61.0, 62.1, 62.9, 64.0], "gain: +1.00 [+0.87, +1.13], p = 0.00015, 4", "loss: +1.00"),
        ([59.0, 60.1, 60.9, 62.0], "loss: -1.00", "gain: -1.00"),
        ([61.0, 60.5, 62.5, 62.9], "not reliable: +0.22", "not reliable: +0.22"),
        (BASELINE, "not reliable: +0.00 [+0.00, +0.00], p = 1, 4 seeds", "not reliable"),
    ],
)
def test_verdicts(other: list[float], word: str, lower: str) -> None:
    result = paired(BASELINE, other)
    assert verdict(result).startswith(word)
    assert verdict(result, higher_is_better=False).startswith(lower)


def test_a_verdict_says_how_many_seeds_the_papers_effect_needs() -> None:
    result = paired([60.0, 60.0, 60.0], [59.0, 60.0, 61.0])  # differences of sd 1
    # Two seeds would do for the test of 40 points, but two seeds give no interval here.
    for effect, needed in ((1.0, 10), (-0.5, 34), (40.0, 3)):
        end = f"; the paper's {effect:+.2f} needs {needed} seeds at sd 1.00"
        assert verdict(result, effect).endswith(end)
    assert seeds_needed(40.0, 1.0) == 2
    few = verdict(paired([61.0, 61.5], [62.0, 62.25]), paper_effect=1.0)
    assert few == "too few seeds: baseline 61.00, 61.50, other 62.00, 62.25, 2 seeds"


# Seeds that a test needs


@pytest.mark.parametrize(("ratio", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_textbook_sample_sizes(ratio: float, n: int) -> None:
    assert seeds_needed(ratio, 1.0) == n
    assert seeds_needed(-3 * ratio, 3.0) == n


@pytest.mark.parametrize(("effect", "sd"), [(0.0, 1.0), (1.0, 0.0), (1.0, math.nan)])
def test_what_no_number_of_seeds_can_show_is_refused(effect: float, sd: float) -> None:
    with pytest.raises(ValueError, match="seeds_needed"):
        seeds_needed(effect, sd)


# Holm


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(max_examples=30)
def test_holm_is_closed_testing_with_bonferroni(p_values: list[float]) -> None:
    # The adjusted value is the largest Bonferroni p over every set of comparisons with it.
    indices = range(len(p_values))
    subsets = [s for r in indices for s in itertools.combinations(indices, r + 1)]
    expected = [
        max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in subsets if i in s)
        for i in indices
    ]
    assert holm(p_values) == pytest.approx(expected)


def test_holm_leaves_out_what_was_not_tested() -> None:
    assert holm([0.02, None, 0.01, None]) == [0.02, None, 0.02, None]
    assert holm([None]) == [None]
    assert holm([]) == []


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_holm_refuses_what_is_no_probability(p: float) -> None:
    with pytest.raises(ValueError, match=r"p_values\[1\]"):
        holm([0.5, p])


# Bootstrap over test images


def test_bootstrap_equals_scipy() -> None:
    generator = np.random.default_rng(0)
    for values in (
        generator.random(300) < 0.7,
        generator.integers(-1, 2, 300),
        generator.random(300),
    ):
        data = values.astype(float)
        ours = bootstrap_interval(data.tolist())
        theirs = stats.bootstrap(
            (data,), np.mean, n_resamples=4000, batch=500, method="percentile", random_state=0
        ).confidence_interval
        error = 100 * data.std() / math.sqrt(300)
        assert ours.low == pytest.approx(100 * theirs.low, abs=0.25 * error)
        assert ours.high == pytest.approx(100 * theirs.high, abs=0.25 * error)
        assert ours.mean == pytest.approx(100 * data.mean())
        assert ours.images == 300


def test_bootstrap_repeats_and_has_no_width_where_all_are_right() -> None:
    values = [1.0, 0.0, 1.0, 1.0, 0.0, -1.0, 0.5, 0.25] * 5
    assert bootstrap_interval(values) == bootstrap_interval(values)
    result = bootstrap_interval(torch.ones(50, dtype=torch.bool))
    assert (result.mean, result.low, result.high) == (100.0, 100.0, 100.0)


def test_bootstrap_refuses_senseless_input() -> None:
    for values in ([], [[1.0]], [1.0, math.nan]):
        with pytest.raises(ValueError, match="per test image"):
            bootstrap_interval(torch.tensor(values))


def test_a_missing_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"batchformer\[lab\]"):
        summary([1.0, 2.0, 3.0])


@given(st.lists(st.floats(0, 100), min_size=3, max_size=6))
def test_an_interval_ends_at_what_is_possible_and_holds_its_mean(values: list[float]) -> None:
    free, cut = summary(values), summary(values, within=(0.0, 100.0))
    assert free.low is not None and free.high is not None
    assert (cut.mean, cut.sd, cut.n) == (free.mean, free.sd, free.n)
    assert (cut.low, cut.high) == (max(free.low, 0.0), min(free.high, 100.0))


def test_values_beyond_what_should_be_possible_still_lie_in_their_interval() -> None:
    found = summary([101.0, 103.0, 105.0], within=(0.0, 100.0))
    assert found.low is not None and found.low < found.mean == found.high


# Pooled over set-ups.


Setups = list[list[float]]

POINTS = st.integers(-500, 500).map(lambda hundredths: hundredths / 100)
SETUPS = st.lists(st.lists(POINTS, min_size=2, max_size=6), min_size=2, max_size=6)


def half_widths(setups: Setups) -> tuple[float, float]:
    """By numpy: half the interval from seeds, and half of that from set-ups."""
    k = len(setups)
    errors = np.array([np.var(x, ddof=1) / len(x) for x in setups])
    freedom = errors.sum() ** 2 / sum(
        e**2 / (len(x) - 1) for e, x in zip(errors, setups, strict=True)
    )
    seeds = stats.t.ppf(0.975, freedom) * np.sqrt(errors.sum()) / k
    means = np.array([np.mean(x) for x in setups])
    return float(seeds), float(stats.t.ppf(0.975, k - 1) * stats.sem(means))


def test_where_seeds_spread_more_the_interval_is_welch_s() -> None:
    """The sum of two set-ups is the difference of one from the other with its signs turned."""
    first, second = [0.3, 2.4, -1.2, 0.9, -0.5, 1.1], [0.6, -1.4, 2.3, 0.5, 0.1, 0.9]
    second = [x + np.mean(first) - np.mean(second) for x in second]
    found = pooled([first, second])
    test = stats.ttest_ind(first, [-x for x in second], equal_var=False)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low / 2, interval.high / 2))
    assert found.p_value == pytest.approx(test.pvalue)  # the means are equal: no other t
    assert found.homogeneity == pytest.approx(1.0)


def test_where_set_ups_differ_more_the_interval_is_over_their_means() -> None:
    setups = [[2.0, 2.1, 1.9], [-1.0, -1.1], [0.4, 0.5, 0.6, 0.5]]
    found = pooled(setups)
    test = stats.ttest_1samp([np.mean(x) for x in setups], 0.0)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(test.pvalue)
    assert (
        found.homogeneity == pytest.approx(stats.f_oneway(*setups).pvalue)
        and found.homogeneity < 0.001
    )
    assert (found.setups, found.seeds) == (3, 9)


@settings(max_examples=40)
@given(SETUPS)
def test_against_numpy_and_its_symmetries(setups: Setups) -> None:
    assume(all(max(x) > min(x) for x in setups))
    found = pooled(setups)
    assert found.low is not None and found.high is not None and found.p_value is not None
    assert found.difference == pytest.approx(np.mean([np.mean(x) for x in setups]), abs=1e-9)
    half = max(half_widths(setups))
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-6)
    if abs(abs(found.difference) - half) > 1e-6:
        assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0)
    turned = pooled([[-v for v in x] for x in reversed(setups)])
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-9)
    assert turned.p_value == pytest.approx(found.p_value, abs=1e-9)


def test_seeds_that_set_ups_share_are_taken_together() -> None:
    """Equal seeds in all set-ups: the interval of their means by seed, where that is the widest."""
    draw = np.random.default_rng(3)
    shared = draw.normal(size=6)
    setups = [list(shared + 0.1 * draw.normal(size=6)) for _ in range(3)]
    alike = [[4, 5, 6, 7, 8, 9]] * 3
    found = pooled(setups, seeds=alike)
    test = stats.ttest_1samp(np.mean(setups, axis=0), 0.0)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(test.pvalue)
    apart = pooled(setups, seeds=[[6 * k + i for i in range(6)] for k in range(3)])
    assert apart == pooled(setups)


def test_the_interval_covers_the_effect_where_set_ups_share_seeds() -> None:
    """Five set-ups, effects of 0, a common part of each seed: 95% of intervals contain 0."""
    draw, covered, trials = np.random.default_rng(6), 0, 400
    seeds = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3], [2, 3], [0, 1, 2, 3, 4, 5]]
    for _ in range(trials):
        common = draw.normal(size=6)
        setups = [[common[s] + 0.3 * draw.normal() for s in own] for own in seeds]
        found = pooled(setups, seeds=seeds)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0 <= found.high
    assert covered / trials > 0.93


def test_the_p_value_holds_at_small_levels_too() -> None:
    """With two set-ups t has one degree of freedom, whose tails are heavy: p is the larger."""
    draw, below, trials = np.random.default_rng(5), 0, 1000
    for _ in range(trials):
        found = pooled([list(draw.normal(mean, 1.0, 6)) for mean in 2 * draw.normal(size=2)])
        assert found.p_value is not None
        below += found.p_value < 0.002
    assert below / trials < 0.005


def test_one_value_everywhere_is_no_certainty() -> None:
    found = pooled([[0.5, 0.5], [0.5, 0.5, 0.5]])
    assert (found.difference, found.low, found.high, found.p_value) == (0.5, None, None, None)
    same = pooled([[0.0, 0.0], [0.0, 0.0]])
    assert (same.low, same.high, same.p_value, same.homogeneity) == (0.0, 0.0, 1.0, 1.0)
    # Exact in no binary: what is left of the subtraction is rounding, and no spread.
    rounded = [[60.3 - 60.1, 61.5 - 61.3], [50.3 - 50.1, 70.5 - 70.3]]
    assert max(map(max, rounded)) > min(map(min, rounded))
    assert pooled(rounded, scale=70.5).p_value is None
    assert pooled([[0.5, 0.5], [1.5, 1.5]]).homogeneity == 0.0


@pytest.mark.parametrize(
    ("setups", "said"),
    [
        ([[0.1, 0.2]], "two set-ups"),
        ([[0.1, 0.2], [0.3]], r"differences\[1\]"),
        ([[0.1, float("nan")], [0.3, 0.2]], r"differences\[0\]"),
    ],
)
def test_what_cannot_be_pooled_is_refused(setups: Setups, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pooled(setups)
