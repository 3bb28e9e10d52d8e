from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from batchformer.lab.metrics.intervals import pooled

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
    assert found.spread == "seeds"
    assert (found.low, found.high) == pytest.approx((interval.low / 2, interval.high / 2))
    assert found.p_value == pytest.approx(test.pvalue)  # the means are equal: no other t
    assert found.alike == pytest.approx(1.0)


def test_where_set_ups_differ_more_the_interval_is_over_their_means() -> None:
    setups = [[2.0, 2.1, 1.9], [-1.0, -1.1], [0.4, 0.5, 0.6, 0.5]]
    found = pooled(setups)
    test = stats.ttest_1samp([np.mean(x) for x in setups], 0.0)
    interval = test.confidence_interval(0.95)
    assert found.spread == "set-ups"
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(test.pvalue)
    assert found.alike == pytest.approx(stats.f_oneway(*setups).pvalue) and found.alike < 0.001
    assert (found.setups, found.seeds) == (3, 9)


def test_a_set_up_counts_once_however_many_seeds_it_has() -> None:
    assert pooled([[1.0, 1.2] * 30, [0.0, -0.2]]).difference == pytest.approx(0.5)


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


def test_the_p_value_holds_at_small_levels_too() -> None:
    """With two set-ups t has one degree of freedom, whose tails are heavy: p is the larger."""
    draw, below, trials = np.random.default_rng(5), 0, 4000
    for _ in range(trials):
        found = pooled([list(draw.normal(mean, 1.0, 6)) for mean in 2 * draw.normal(size=2)])
        assert found.p_value is not None
        below += found.p_value < 0.002
    assert below / trials < 0.005


@pytest.mark.parametrize("between", [0.0, 1.0])
def test_it_covers_the_true_effect_whether_set_ups_differ_or_not(between: float) -> None:
    """Simulated: 5 set-ups of 3 seeds, unequally noisy; an interval of 95% misses 1 in 20."""
    draw, truth, missed, trials = np.random.default_rng(3), 0.4, 0, 600
    for _ in range(trials):
        effects = truth + between * draw.normal(size=5)
        setups = [
            list(draw.normal(mean, sd, 3))
            for mean, sd in zip(effects, (0.2, 0.5, 0.8, 0.4, 1.0), strict=True)
        ]
        found = pooled(setups)
        assert found.low is not None and found.high is not None
        missed += not found.low <= truth <= found.high
    assert missed / trials < 0.075


def test_one_value_everywhere_is_no_certainty() -> None:
    found = pooled([[0.5, 0.5], [0.5, 0.5, 0.5]])
    assert (found.difference, found.low, found.high, found.p_value) == (0.5, None, None, None)
    same = pooled([[0.0, 0.0], [0.0, 0.0]])
    assert (same.low, same.high, same.p_value, same.alike) == (0.0, 0.0, 1.0, 1.0)
    # Exact in no binary: what is left of the subtraction is rounding, and no spread.
    rounded = [[60.3 - 60.1, 61.5 - 61.3], [50.3 - 50.1, 70.5 - 70.3]]
    assert max(map(max, rounded)) > min(map(min, rounded))
    assert pooled(rounded, scale=70.5).p_value is None
    apart = pooled([[0.5, 0.5], [1.5, 1.5]])
    assert (apart.spread, apart.alike) == ("set-ups", 0.0)


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
