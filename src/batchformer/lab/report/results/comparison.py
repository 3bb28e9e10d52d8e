"""Compare each arm with the reference arm, over the seeds that both have finished."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchformer.insight.figures.networks import main_arm
from batchformer.insight.intervals import FEWEST_SEEDS, Summary, summary
from batchformer.lab.config.arms import MAIN
from batchformer.lab.metrics.intervals import (
    ImageInterval,
    Outcome,
    Paired,
    bootstrap_interval,
    holm,
    outcome,
    paired,
    seeds_needed,
)
from batchformer.lab.report.results import notes
from batchformer.lab.report.results.configuration import RunGroup, comparable
from batchformer.lab.report.results.names import (
    LOWER_IS_BETTER,
    UNTESTED,
    bounds,
    decimals,
    in_words,
    main_metric,
    metric_label,
    sorted_metrics,
)
from batchformer.lab.report.results.runs import RecordedRun, headline

ALPHA = 0.05  # a difference is significant if its p-value after Holm's correction is below this
Values = Mapping[int, float]  # one score for each seed


@dataclass(frozen=True)
class Score:
    """One arm on one metric, over the seeds that have it, and the paper's number if it has one."""

    summary: Summary
    seeds: tuple[int, ...]
    paper: float | None
    decimals: int = 2


@dataclass(frozen=True)
class Difference:
    """One arm against the reference on one metric, over the seeds that both have finished."""

    paired: Paired
    seeds: tuple[int, ...]
    # Of this comparison alone, before correction; None for a metric that is not tested
    outcome: Outcome | None
    adjusted: float | None  # Holm's p-value over every comparison of the table
    # The paper's difference in percentage points; None unless it has both numbers
    paper_effect: float | None
    needed: int | None  # seeds needed to detect the paper's effect, given the spread here
    decimals: int = 2

    @property
    def significant(self) -> bool:
        """Whether the outcome is significant after Holm's correction."""
        return self.adjusted is not None and self.adjusted < ALPHA


@dataclass(frozen=True)
class RecipeComparison:
    """Every arm of one recipe; ``scores`` and ``differences`` go by (arm, metric)."""

    group: RunGroup
    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    scores: Mapping[tuple[str, str], Score]
    differences: Mapping[tuple[str, str], Difference]
    over_images: Mapping[str, ImageInterval]  # by arm, of the difference in accuracy
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def reference(self) -> str:
        """The arm that the others are compared with."""
        return self.group.reference

    @property
    def others(self) -> tuple[str, ...]:
        """The arms that are compared with the reference."""
        return tuple(dict.fromkeys(arm for arm, _ in self.differences))

    @property
    def main_arm(self) -> str | None:
        """The arm that the headline is about."""
        return main_arm(self.others)

    @property
    def main_metric(self) -> str:
        """The metric that the headline is about."""
        return main_metric(self.metrics) or "all"

    @property
    def main_difference(self) -> Difference | None:
        """The difference that the headline is about."""
        return self.differences.get((self.main_arm or "", self.main_metric))


@dataclass(frozen=True)
class Comparison:
    """The whole table: its recipes, how many comparisons it has, and what is missing."""

    recipes: tuple[RecipeComparison, ...]
    comparisons: int
    tested: int
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]


def compare_runs(runs: Iterable[RecordedRun], reference: str | None = None) -> Comparison:
    """Compare every arm with the reference, recipe by recipe and metric by metric.

    The default ``reference`` is the baseline or, in a recipe where none has finished, the first
    arm in the known order that shares a seed with another.

    P-values are corrected over all comparisons of all recipes; the metrics in ``UNTESTED`` are not
    tested.
    Runs that are damaged or unfinished are named in ``left_out``.
    """
    runs = list(runs)
    recipes = [_recipe(group) for group in comparable(runs, reference)]
    differences = [d for recipe in recipes for d in recipe.differences.values()]
    p_values = [difference.paired.p_value for difference in differences]
    adjusted = iter(holm(p_values))
    corrected = tuple(
        replace(
            recipe,
            differences={
                key: replace(difference, adjusted=next(adjusted))
                for key, difference in recipe.differences.items()
            },
        )
        for recipe in recipes
    )
    tested = sum(p is not None for p in p_values)
    compared = sum(difference.outcome is not None for difference in differences)
    return Comparison(corrected, compared, tested, notes.left_out(runs), notes.remarks_on(runs))


def over_images(group: RunGroup, arm: str) -> ImageInterval | None:
    """Bootstrap the accuracy difference (arm - reference) over test images, not over seeds.

    The difference of each image is averaged over the seeds that both arms have. None if fewer than
    three pairs of runs recorded ``correct`` of shape (M,), or if their test sets differ in size.
    """
    reference = {run.seed: run.figures.get("correct") for run in group.of(group.reference)}
    pairs = ((run.figures.get("correct"), reference.get(run.seed)) for run in group.of(arm))
    # Integer sums give images with equal answers exactly equal values.
    differences = [
        right.astype(np.int64) - left.astype(np.int64)
        for right, left in pairs
        if right is not None and left is not None and right.ndim == 1 and right.shape == left.shape
    ]
    sizes = {one.size for one in differences}
    if len(differences) < FEWEST_SEEDS or len(sizes) > 1 or 0 in sizes:
        return None
    return bootstrap_interval((np.sum(differences, 0) / len(differences)).tolist())


# Shared with sweeps: scores of runs, and the difference of two sides.


def by_seed(runs: Iterable[RecordedRun], metric: str) -> dict[int, float]:
    """The score of each seed that has the metric."""
    return {run.seed: value for run in runs if (value := run.measured(metric)) is not None}


def score_of(values: Values, metric: str, paper: float | None) -> Score:
    """Mean and interval of these seeds."""
    return Score(
        summary([*values.values()], bounds(metric)), tuple(values), paper, decimals(metric)
    )


def difference_between(
    before: Values, after: Values, metric: str, paper: tuple[float | None, float | None]
) -> Difference | None:
    """``after - before`` over the seeds that both have; None if they share none.

    ``before`` is the reference; ``paper`` has the paper's numbers of both. The outcome is that of
    this comparison alone. A metric in ``UNTESTED`` gets neither outcome nor p-value.
    """
    seeds = tuple(sorted(before.keys() & after.keys()))
    if not seeds:
        return None
    start, end = paper
    effect = None if start is None or end is None else end - start
    result = paired([before[seed] for seed in seeds], [after[seed] for seed in seeds])
    if metric in UNTESTED:
        untested = replace(result, p_value=None)
        return Difference(untested, seeds, None, None, effect, None, decimals(metric))
    word = outcome(result, higher_is_better=metric not in LOWER_IS_BETTER)
    needed = None
    if effect and result.sd and result.n >= FEWEST_SEEDS:
        needed = max(FEWEST_SEEDS, seeds_needed(effect, result.sd))
    return Difference(result, seeds, word, None, effect, needed, decimals(metric))


# One recipe.


def _recipe(group: RunGroup) -> RecipeComparison:
    warnings = list(group.warnings)
    metrics = _metrics(group, warnings)
    values = {
        (arm, metric): by_seed(group.of(arm), metric) for arm in group.arms for metric in metrics
    }
    runs = [run for arm in group.arms for run in group.of(arm)]
    warnings += notes.unmeasured_notes(runs, metrics, group.name, "arm")
    paper = group.recipe.get("paper") or {}
    scores = {
        (arm, metric): score_of(own, metric, _number(paper, arm, metric))
        for (arm, metric), own in values.items()
        if own
    }
    differences = {}
    for (arm, metric), own in values.items():
        if arm == group.reference:
            continue
        printed = _number(paper, group.reference, metric), _number(paper, arm, metric)
        before = values.get((group.reference, metric), {})
        if (found := difference_between(before, own, metric, printed)) is not None:
            differences[arm, metric] = found
    warnings += _seeds_warnings(group)
    warnings += notes.shots_note(group.recipe)
    warnings += notes.data_notes(group.runs) + notes.selection_note(group.recipe)
    warnings += notes.arms_note(group.recipe, group.arms) + notes.metric_notes(metrics)
    warnings += notes.reweighting_note(group.recipe, group.runs)
    warnings += notes.inactive_encoder_notes(group)
    if paper and MAIN in group.arms and not paper.get(MAIN):
        warnings.append("The paper has no numbers of this recipe with BatchFormer")
    images = {arm: over_images(group, arm) for arm in group.arms if arm != group.reference}
    return RecipeComparison(
        group,
        tuple(group.arms),
        tuple(metrics),
        scores,
        differences,
        {arm: interval for arm, interval in images.items() if interval is not None},
        tuple(warnings),
    )


def _metrics(group: RunGroup, warnings: list[str]) -> list[str]:
    """Metrics measured at least once, without those that repeat another in every run."""
    found = {name for run in group.runs for name in run.scores if run.measured(name) is not None}
    repeats = [("mean_class", name, "the test set is balanced") for name in ("all", "top1")]
    if len(shots := found & {"many", "medium", "few"}) == 1:
        (only,) = shots  # it is a mean over its classes, and here these are all classes
        repeats.insert(0, (only, "mean_class", f"all tested classes are {only}"))
    for name, other, why in repeats:
        if {name, other} <= found and _are_equal(group, name, other):
            found.remove(name)
            warnings.append(
                f"{metric_label(name)} equals {metric_label(other)} in every run ({why}) and is "
                "not counted as another comparison"
            )
    return sorted_metrics(found, headline(group.runs))


def _are_equal(group: RunGroup, one: str, other: str) -> bool:
    return all(
        math.isclose(run.measured(one) or 0, run.measured(other) or 0, abs_tol=1e-6)
        for run in group.runs
    )


def _seeds_warnings(group: RunGroup) -> list[str]:
    """Arms that are compared on fewer seeds than were run."""
    reference = {run.seed for run in group.of(group.reference)}
    if not reference:
        return [f"{group.name} has no finished {group.reference}: nothing to compare with"]
    warnings = []
    for arm in group.arms:
        own = {run.seed for run in group.of(arm)}
        if own != reference:
            shared = ", ".join(map(str, sorted(own & reference))) or "none"
            warnings.append(
                f"{arm} is compared on the seeds it shares with {in_words(group.reference)}: "
                f"{shared}"
            )
    return warnings


def _number(paper: Mapping[str, Any], arm: str, metric: str) -> float | None:
    value = (paper.get(arm) or {}).get(metric)
    return None if value is None else float(value)
