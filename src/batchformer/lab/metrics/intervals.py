"""What a few seeds can say: intervals, paired comparisons, and effects pooled over comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.insight.intervals import FEWEST_SEEDS, LEVEL, finite_values, statistics_library

# Intervals over seeds come from Student's t, never from a bootstrap: with 3 to 6 values a bootstrap
# interval is far too short. A bootstrap is offered only over test images: there are thousands.

POWER = 0.8  # power of a test that `seeds_needed` asks for
RESAMPLES = 2000  # draws of a bootstrap

Outcome = Literal["gain", "loss", "not reliable", "too few seeds", "no spread"]


ROUNDING = 1e-9
"""Relative spread below which differences are equal but for rounding, far below 1 image in 10^6."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Mean of other - baseline over ``n`` paired seeds, and its 95% t interval; None if unknown."""

    difference: float
    sd: float | None  # of the differences
    low: float | None
    high: float | None
    p_value: float | None
    n: int
    baseline: tuple[float, ...]
    other: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ImageInterval:
    """95% bootstrap interval over ``images`` test images; the spread of seeds is not in it."""

    mean: float
    low: float
    high: float
    images: int


def paired(baseline_values: Sequence[float], other_values: Sequence[float]) -> Paired:
    """Paired Student t of other - baseline; position i of both is the same seed.

    With fewer than three seeds there is no interval and no p-value. If both arms have the same
    values, the interval is (0, 0) and p = 1. If every seed has the same non-zero difference, t is
    infinite. On a small test set that is a coincidence of its coarse steps and no certainty, so
    there is no interval and no p-value.
    """
    baseline = finite_values(baseline_values, "baseline_values")
    other = finite_values(other_values, "other_values")
    if len(baseline) != len(other):
        raise ValueError(
            f"paired needs the same seeds in both arms, got {len(baseline)} baseline values and "
            f"{len(other)} others: leave out the seeds that only one arm has"
        )
    differences = [b - a for a, b in zip(baseline, other, strict=True)]
    n, mean = len(differences), statistics.mean(differences)
    sd = statistics.stdev(differences) if n > 1 else None
    scale = max(map(abs, baseline + other))
    if n < FEWEST_SEEDS:
        return Paired(mean, sd, None, None, None, n, baseline, other)
    if max(differences) - min(differences) <= ROUNDING * scale:
        if abs(mean) <= ROUNDING * scale:
            return Paired(0.0, 0.0, 0.0, 0.0, 1.0, n, baseline, other)
        return Paired(mean, 0.0, None, None, None, n, baseline, other)
    test = statistics_library().ttest_rel(other, baseline)
    interval = test.confidence_interval(LEVEL)
    low, high = float(interval.low), float(interval.high)
    return Paired(mean, sd, low, high, float(test.pvalue), n, baseline, other)


def outcome(result: Paired, *, higher_is_better: bool = True) -> Outcome:
    """One word for a comparison: gain or loss only where the 95% interval excludes 0.

    "no spread" is the same non-zero difference in every seed, where there is no interval.
    """
    if result.n < FEWEST_SEEDS:
        return "too few seeds"
    return outcome_of(result.low, result.high, higher_is_better=higher_is_better)


def outcome_of(low: float | None, high: float | None, *, higher_is_better: bool = True) -> Outcome:
    """The :func:`outcome` of an interval by itself.

    >>> outcome_of(-0.1, 0.4), outcome_of(0.1, 0.4), outcome_of(0.1, 0.4, higher_is_better=False)
    ('not reliable', 'gain', 'loss')
    """
    if low is None or high is None:
        return "no spread"
    if low <= 0.0 <= high:
        return "not reliable"
    return "gain" if (low > 0.0) == higher_is_better else "loss"


def verdict(
    result: Paired, paper_effect: float | None = None, *, higher_is_better: bool = True
) -> str:
    """The outcome in words, with its numbers.

    Given the paper's effect (percentage points), adds how many seeds would show an effect of that
    size at the spread seen here; with fewer than three seeds the spread is not known well enough.
    The interval is that of one comparison; correct the p-values of a table with ``holm``.

    >>> verdict(paired([61.0, 62.0, 63.0], [61.5, 61.9, 63.2]))
    'not reliable: +0.20 [-0.55, +0.95], p = 0.37, 3 seeds'
    >>> verdict(paired([61.0], [61.5]))
    'too few seeds: baseline 61.00, other 61.50, 1 seed'
    """
    word = outcome(result, higher_is_better=higher_is_better)
    seeds = f"{result.n} seed" + ("s" if result.n > 1 else "")
    if word == "too few seeds":
        baseline = ", ".join(f"{value:.2f}" for value in result.baseline)
        other = ", ".join(f"{value:.2f}" for value in result.other)
        return f"{word}: baseline {baseline}, other {other}, {seeds}"
    if word == "no spread":
        return f"{word}: {result.difference:+.2f} in every seed, no interval, {seeds}"
    numbers = f"{result.difference:+.2f} [{result.low:+.2f}, {result.high:+.2f}]"
    text = f"{word}: {numbers}, p = {result.p_value:.2g}, {seeds}"
    if paper_effect and result.sd:
        needed = max(FEWEST_SEEDS, seeds_needed(paper_effect, result.sd))
        text += f"; the paper's {paper_effect:+.2f} needs {needed} seeds at sd {result.sd:.2f}"
    return text


def seeds_needed(effect: float, sd: float) -> int:
    """Fewest paired seeds with which a two-sided paired t test finds ``effect`` with power 0.8.

    ``sd`` is that of the paired differences.

    >>> seeds_needed(effect=1.0, sd=1.0)
    10
    """
    ratio = abs(effect) / sd if sd > 0 else math.nan
    if not 0 < ratio < math.inf:
        raise ValueError(
            f"seeds_needed needs a non-zero effect and a positive sd, got effect={effect}, sd={sd}"
        )
    low, high = 1, 2
    while _power(ratio, high) < POWER:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(ratio, middle) >= POWER else (middle, high)
    return high


def chance_of_finding(effect: float, sd: float, n: int) -> tuple[float, float, float]:
    """Chance that a two-sided paired t test on ``n`` seeds finds ``effect``, and its range.

    ``sd`` is that of the paired differences, itself measured on ``n`` seeds. The range has the
    chance at both ends of the 95% interval of the standard deviation (chi-squared): with three
    seeds it reaches from nearly nothing to nearly certain.

    >>> ["%.2f" % chance for chance in chance_of_finding(effect=1.0, sd=0.5, n=3)]
    ['0.47', '0.06', '0.89']
    """
    if not (effect and sd > 0 and n >= FEWEST_SEEDS):
        raise ValueError(
            f"chance_of_finding needs a non-zero effect, a positive sd and {FEWEST_SEEDS} seeds, "
            f"got effect={effect}, sd={sd}, n={n}"
        )
    quantiles = statistics_library().chi2.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2], n - 1)
    widest, narrowest = (sd * math.sqrt((n - 1) / float(q)) for q in quantiles)
    at, low, high = (_power(abs(effect) / s, n) for s in (sd, widest, narrowest))
    return at, low, high


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment for the several comparisons of one table, order kept.

    If adjusted p-values are read at some level, the chance of any false finding in the table is
    at most that level, however the comparisons depend on each other. None (no test was made)
    stays None and does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    tested = [(p, i) for i, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(sorted(tested)):
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"holm: p_values[{i}] is {p}, not a probability")
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[i] = largest
    return adjusted


def bootstrap_interval(per_image: Tensor | Sequence[float]) -> ImageInterval:
    """95% percentile bootstrap over test images, for one trained network.

    It says how the score varies over draws of test images, not over repeated trainings. The draws
    are the same at each call.

    Args:
        per_image: (M,), 1 where an image was right and 0 where wrong, or differences of networks on
            the same images (-1 to 1). The result is percent, or percentage points.
    """
    import numpy as np

    values = torch.as_tensor(per_image).detach().cpu().double().numpy()
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(
            f"bootstrap_interval needs one finite value per test image, shape (M,), got shape "
            f"{values.shape}"
        )
    # Drawing M images with replacement is drawing how often each distinct value comes up: the
    # same distribution without M * RESAMPLES indices, since the values are few.
    distinct, counts = np.unique(values, return_counts=True)
    images, generator = values.size, np.random.default_rng(0)
    shares = counts / images
    means = [generator.multinomial(images, shares) @ distinct / images for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return ImageInterval(100 * float(values.mean()), 100 * float(low), 100 * float(high), images)


def _power(ratio: float, n: int) -> float:
    """Power of the two-sided paired t test at effect / sd = ``ratio`` with ``n`` pairs.

    It is that of the noncentral t.
    """
    stats = statistics_library()
    freedom, shift = float(n - 1), ratio * math.sqrt(n)
    critical = stats.t.ppf(1 - 0.05 / 2, freedom)
    far_tail = float(stats.nct.cdf(-critical, freedom, shift))
    # scipy gives NaN for the far tail where it is below 1e-14.
    far_tail = 0.0 if math.isnan(far_tail) else far_tail
    return float(stats.nct.sf(critical, freedom, shift)) + far_tail


# One effect from several comparisons that are each too small to show it.
#
# A comparison of three seeds cannot see a quarter of a point; seven of them can. Each set-up (a
# recipe, compared on its own seeds) counts once. Two spreads bound what its mean can say: that of
# the seeds inside the set-ups, and that of the set-ups' effects among themselves. The first holds
# for these set-ups, the second for others like them. With few seeds or few set-ups either spread
# can be too small by chance, so the wider interval is given.

FEWEST_OF_A_SETUP = 2  # paired seeds of a set-up: one has no spread


@dataclass(frozen=True, slots=True)
class Pooled:
    """Mean difference over ``setups``, each counted once, with the widest 95% t interval."""

    difference: float
    # Ends of the interval; None if every seed of every set-up has the same non-zero difference,
    # which on small test sets is a coincidence and no certainty
    low: float | None
    high: float | None
    # The largest p-value of these t tests, below 0.05 where the interval excludes 0; or None
    p_value: float | None
    # P-value of the hypothesis that the effect is the same in every set-up (one-way analysis of
    # variance); small where set-ups differ by more than their seeds do
    homogeneity: float
    setups: int
    seeds: int  # paired seeds in all


def pooled(
    differences: Sequence[Sequence[float]],
    scale: float = 0.0,
    *,
    seeds: Sequence[Sequence[int]] | None = None,
) -> Pooled:
    """The mean effect over set-ups.

    Over seeds, the mean of the set-ups' means has the variance ``sum(s_i^2 / n_i) / K^2``, with
    Satterthwaite's degrees of freedom, since set-ups need not be equally noisy. Over set-ups it is
    one value each, and Student's t has K - 1 degrees of freedom. Runs of one seed begin alike in
    all set-ups, so the first variance is too small where set-ups share seeds. Then a third one is
    computed from one value for each seed, its mean over set-ups.

    Args:
        differences: for each set-up, other - baseline of each of its paired seeds.
        scale: the largest value that was subtracted, to tell rounding from spread.
        seeds: the seeds of these differences. None: no two set-ups share one.

    >>> found = pooled([[0.1, 0.4, 0.3], [0.5, -0.1], [0.2, 0.6, 0.2]])
    >>> f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
    '+0.27 [-0.35, +0.89]'
    """
    if len(differences) < 2:
        raise ValueError(f"pooled needs two set-ups or more, got {len(differences)}")
    for i, values in enumerate(differences):
        if len(values) < FEWEST_OF_A_SETUP or not all(map(math.isfinite, values)):
            raise ValueError(
                f"differences[{i}] is {list(values)}: a set-up needs {FEWEST_OF_A_SETUP} paired "
                f"seeds or more, all finite"
            )
    means = [statistics.mean(values) for values in differences]
    mean = statistics.mean(means)
    errors = [statistics.variance(values) / len(values) for values in differences]
    # The standard error of the mean and its degrees of freedom: from seeds, from set-ups, and from
    # seeds that set-ups share.
    sources = [
        (math.sqrt(sum(errors)) / len(means), _satterthwaite(errors, differences)),
        (statistics.stdev(means) / math.sqrt(len(means)), len(means) - 1.0),
    ]
    if seeds is not None and len(set().union(*seeds)) < sum(map(len, seeds)):
        sources.append(_by_seed(differences, mean, seeds))
    rounding = ROUNDING * scale
    homogeneity, count = _homogeneity(means, differences, rounding), sum(map(len, differences))
    flat = [value for values in differences for value in values]
    if max(flat) - min(flat) <= rounding:
        mean = 0.0 if abs(mean) <= rounding else mean
        limit, p_value = (0.0, 1.0) if mean == 0 else (None, None)
        return Pooled(mean, limit, limit, p_value, homogeneity, len(means), count)
    t = statistics_library().t
    half = max(error * float(t.ppf((1 + LEVEL) / 2, freedom)) for error, freedom in sources)
    # Far from the 5% level a source with a narrower interval may have the heavier tails.
    p_value = max(
        2 * float(t.sf(abs(mean) / error, freedom)) for error, freedom in sources if error
    )
    return Pooled(mean, mean - half, mean + half, p_value, homogeneity, len(means), count)


def _by_seed(
    differences: Sequence[Sequence[float]], mean: float, seeds: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Standard error of the mean of means, and its degrees of freedom, from one value a seed.

    A seed's value is the mean of its differences, each weighted as in the mean of means. The
    degrees of freedom are the effective number of seeds, less one.
    """
    weights: dict[int, float] = {}
    sums: dict[int, float] = {}
    for values, own in zip(differences, seeds, strict=True):
        weight = 1 / len(values) / len(differences)
        for value, seed in zip(values, own, strict=True):
            weights[seed] = weights.get(seed, 0.0) + weight
            sums[seed] = sums.get(seed, 0.0) + weight * value
    squares = sum(w**2 for w in weights.values())
    spread = sum(w * (sums[seed] / w - mean) ** 2 for seed, w in weights.items())
    return math.sqrt(spread / (1 - squares) * squares), 1 / squares - 1


def _satterthwaite(errors: Sequence[float], differences: Sequence[Sequence[float]]) -> float:
    """Degrees of freedom of a sum of variances of means, each known from its own few seeds."""
    parts = sum(
        error**2 / (len(values) - 1) for error, values in zip(errors, differences, strict=True)
    )
    return sum(errors) ** 2 / parts if parts else float(sum(map(len, differences)) - len(errors))


def _homogeneity(
    means: Sequence[float], differences: Sequence[Sequence[float]], rounding: float
) -> float:
    """P-value of one effect in every set-up; without any spread inside them it is 0 or 1."""
    if not any(max(values) - min(values) > rounding for values in differences):
        return float(max(means) - min(means) <= rounding)
    return float(statistics_library().f_oneway(*differences).pvalue)
