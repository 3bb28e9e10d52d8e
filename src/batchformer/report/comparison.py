"""Arm against arm over the seeds both have finished: numbers only, nothing printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from batchformer.metrics.intervals import (
    FEWEST_SEEDS,
    Paired,
    holm,
    outcome,
    paired,
    seeds_needed,
    summary,
)
from batchformer.report.configuration import Group, comparable
from batchformer.report.names import (
    LOWER_IS_BETTER,
    NOT_IN_PERCENT,
    in_words,
    metric_label,
    sorted_metrics,
)
from batchformer.report.over_images import over_images
from batchformer.report.results import Comparison, Difference, RecipeComparison, Score
from batchformer.report.runs import Run, headline


def compare_runs(runs: Iterable[Run], reference: str | None = None) -> Comparison:
    """Compare every arm with the reference, recipe by recipe and metric by metric.

    Without a ``reference`` it is the baseline or, in a recipe where none has finished, the first
    arm in the known order that another shares a seed with.

    P-values are corrected over all comparisons of all recipes given. Runs that are damaged or
    unfinished are named in ``left_out``.
    """
    runs = list(runs)
    recipes = [_recipe(group) for group in comparable(runs, reference)]
    p_values = [d.paired.p_value for recipe in recipes for d in recipe.differences.values()]
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
    remarks = tuple(f"{run.name}: {remark}" for run in runs for remark in run.remarks)
    return Comparison(corrected, len(p_values), tested, left_out(runs), remarks)


def _recipe(group: Group) -> RecipeComparison:
    warnings = list(group.warnings)
    metrics = _metrics(group, warnings)
    values = {
        (arm, metric): _values(group, arm, metric, warnings)
        for arm in group.arms
        for metric in metrics
    }
    paper = group.recipe.get("paper") or {}
    scores = {
        (arm, metric): Score(
            summary([*by_seed.values()]), tuple(by_seed), _number(paper, arm, metric)
        )
        for (arm, metric), by_seed in values.items()
        if by_seed
    }
    differences = {}
    for (arm, metric), other in values.items():
        reference = values.get((group.reference, metric), {})
        seeds = tuple(sorted(reference.keys() & other.keys()))
        if arm != group.reference and seeds:
            result = paired([reference[s] for s in seeds], [other[s] for s in seeds])
            differences[arm, metric] = difference_of(
                result, seeds, metric, _effect(paper, arm, group.reference, metric)
            )
    warnings += _seeds_warnings(group)
    warnings += shots_warnings(group.recipe)
    warnings += scale_warnings(metrics)
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


def shots_warnings(recipe: Mapping[str, Any]) -> list[str]:
    """What Many, Medium and Few are, where they are not the paper's."""
    if (recipe.get("data") or {}).get("shots") != "thirds":
        return []
    return [
        "Many, Medium and Few are thirds of the classes by training images here, not the paper's "
        "limits of 100 and 20"
    ]


def scale_warnings(metrics: Iterable[str]) -> list[str]:
    """Which metrics are not in percent."""
    others = [metric_label(metric) for metric in metrics if metric in NOT_IN_PERCENT]
    if not others:
        return []
    return [f"On scales of their own, not in percent: {', '.join(others)}"]


def _seeds_warnings(group: Group) -> list[str]:
    """Arms that are compared on fewer seeds than were run."""
    reference = {run.seed for run in group.of(group.reference)}
    if not reference:
        return [f"{group.name} has no finished {group.reference}: nothing to compare with"]
    warnings = []
    called = in_words(group.reference)
    for arm in group.arms:
        own = {run.seed for run in group.of(arm)}
        if own != reference:
            shared = ", ".join(map(str, sorted(own & reference))) or "none"
            warnings.append(f"{arm} is compared on the seeds it shares with {called}: {shared}")
    return warnings


def difference_of(
    result: Paired, seeds: tuple[int, ...], metric: str, effect: float | None
) -> Difference:
    """A comparison with its outcome, not corrected yet.

    Args:
        result: over the seeds.
        seeds: those that both sides have.
        metric: says whether higher is better.
        effect: the paper's difference, percent points.
    """
    word = outcome(result, higher_is_better=metric not in LOWER_IS_BETTER)
    needed = None
    if effect and result.sd and result.n >= FEWEST_SEEDS:
        needed = max(FEWEST_SEEDS, seeds_needed(effect, result.sd))
    return Difference(result, seeds, word, None, effect, needed)


def _metrics(group: Group, warnings: list[str]) -> list[str]:
    """Metrics measured at least once, less a class mean that repeats the accuracy."""
    found = {name for run in group.runs for name in run.scores if measured(run, name) is not None}
    accuracy = next((name for name in ("all", "top1") if name in found), None)
    if (
        accuracy
        and "mean_class" in found
        and all(
            math.isclose(measured(r, accuracy) or 0, measured(r, "mean_class") or 0, abs_tol=1e-6)
            for r in group.runs
        )
    ):
        found.remove("mean_class")
        warnings.append(
            f"The class mean equals {metric_label(accuracy)} in every run (the test set is "
            "balanced) and is not counted as another comparison"
        )
    return sorted_metrics(found, headline(group.runs))


def _values(group: Group, arm: str, metric: str, warnings: list[str]) -> dict[int, float]:
    """One finite value per seed; what was not measured is said, since it flatters the mean."""
    by_seed = {}
    for run in group.of(arm):
        value = measured(run, metric)
        if value is None:
            warnings.append(
                f"{run.name}: {metric!r} is {run.scores.get(metric)}, so this seed is not in the "
                f"mean; if it diverged, the mean flatters the arm"
            )
        else:
            by_seed[run.seed] = value
    return by_seed


def left_out(runs: Iterable[Run]) -> tuple[str, ...]:
    """A line for each run that is damaged or has not finished."""
    lines = []
    for run in runs:
        if run.state == "damaged":
            lines.append(f"{run.name} is damaged: {run.damage} ({run.folder})")
        elif run.state == "unfinished":
            last = max((int(record["step"]) for record in run.metrics), default=0)
            lines.append(f"{run.name} has not finished: last record at update {last}")
    return tuple(lines)


def measured(run: Run, metric: str) -> float | None:
    """A final score, or None where it is missing or not finite."""
    value = run.scores.get(metric)
    return float(value) if value is not None and math.isfinite(value) else None


def _number(paper: Mapping[str, Any], arm: str, metric: str) -> float | None:
    value = (paper.get(arm) or {}).get(metric)
    return None if value is None else float(value)


def _effect(paper: Mapping[str, Any], arm: str, reference: str, metric: str) -> float | None:
    """The paper's difference, where it has the numbers of both arms."""
    other, start = _number(paper, arm, metric), _number(paper, reference, metric)
    return None if other is None or start is None else other - start
