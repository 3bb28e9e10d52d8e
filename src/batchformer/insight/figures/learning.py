"""Have networks learnt to tell classes apart at all? Without that their figures say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch.distributions import Binomial

from batchformer.insight.figures.text import interval, number
from batchformer.insight.intervals import Summary, summary
from batchformer.insight.record import InsightArrays

LEVEL = 0.025  # level of the one-sided tests, as at one end of a 95% interval


@dataclass(frozen=True)
class Learning:
    """Accuracy of one arm on the measured test images, in percent."""

    accuracy: Summary  # over seeds
    chance: float  # accuracy if every answer were the most frequent class; highest over seeds
    untrained: float | None  # mean over seeds before training; None where that was not measured
    # Whether every seed is better than chance and than its untrained network, and the interval
    # over seeds, where there is one, lies above chance
    learnt: bool

    @property
    def words(self) -> str:
        """The numbers, for a sentence."""
        said = f"accuracy {number(self.accuracy.mean, 1)}%"
        if self.accuracy.low is not None:
            said += f" {interval(self.accuracy.low, self.accuracy.high, decimals=1)}"
        said += f", chance {number(self.chance, 1)}%"
        if self.untrained is not None:
            said += f", before training {number(self.untrained, 1)}%"
        return said


def learning(runs: Sequence[InsightArrays]) -> Learning | None:
    """What the seeds of one arm have learnt; None where a run did not keep its right answers."""
    names = ("reliability_count", "reliability_correct", "gradient_samples")
    if not runs or any(name not in run for run in runs for name in names):
        return None
    accuracies, before, learnt, chance = [], [], [], 0.0
    for run in runs:
        images = round(float(run["reliability_count"][0].sum()))
        if not images:
            return None
        right = round(float(run["reliability_correct"][0].sum()))
        samples = run["gradient_samples"]
        share = float(samples.max() / samples.sum())
        untrained = run.get("untrained_correct")
        accuracies.append(100 * right / images)
        chance = max(chance, 100 * share)
        above = _binomial_tail(right, images, share) < LEVEL
        if untrained is not None:
            before.append(100 * float(untrained) / images)
            above = above and _more_than_before(right, round(float(untrained)), images)
        learnt.append(above)
    found = summary(accuracies, within=(0.0, 100.0))
    above = found.low is None or found.low > chance
    mean = sum(before) / len(before) if before else None
    return Learning(found, chance, mean, above and all(learnt))


def _more_than_before(right: int, before: int, images: int) -> bool:
    """Whether more answers are right than before, by a normal test of two proportions."""
    both = (right + before) / (2 * images)
    error = math.sqrt(max(2 * both * (1 - both) / images, 0.0))
    critical = NormalDist().inv_cdf(1 - LEVEL)
    return (right - before) / images > critical * error


def _binomial_tail(least: int, trials: int, chance: float) -> float:
    """Probability of ``least`` or more successes; torch computes it, so scipy is not needed.

    >>> round(_binomial_tail(2, 3, 0.5), 6), _binomial_tail(0, 3, 0.5), _binomial_tail(3, 3, 1.0)
    (0.5, 1.0, 1.0)
    """
    if least <= 0 or chance >= 1:
        return 1.0
    successes = torch.arange(least, trials + 1, dtype=torch.float64)
    binomial = Binomial(trials, torch.tensor(chance, dtype=torch.float64))
    return float(binomial.log_prob(successes).exp().sum())  # type: ignore[no-untyped-call]
