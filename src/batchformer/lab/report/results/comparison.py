"""Arm against arm over the seeds both have finished: numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from batchformer.insight.intervals import FEWEST_SEEDS, summary
from batchformer.lab.metrics.intervals import (
    ImageInterval,
    Paired,
    bootstrap_interval,
    holm,
    outcome,
    paired,
    seeds_needed,
)
from batchformer.lab.report.results.acting import acting_notes
from batchformer.lab.report.results.configuration import RunGroup, comparable
from batchformer.lab.report.results.names import (
    DESCRIPTIVE,
    LOWER_IS_BETTER,
    bounds,
    decimals,
    in_words,
    metric_label,
    sorted_metrics,
)
from batchformer.lab.report.results.notes import (
    arms_note,
    metric_notes,
    remarks_on,
    reweighting_note,
    unmeasured,
)
from batchformer.lab.report.results.results import Comparison, Difference, RecipeComparison, Score
from batchformer.lab.report.results.runs import Run, headline

# Had the test images been others: a bootstrap over them, for the networks as they are trained.


def over_images(group: RunGroup, arm: str) -> ImageInterval | None:
    """Difference of accuracy (arm - reference) with its interval over TEST IMAGES, not seeds.

    The difference of each image is averaged over the seeds both arms have. None where fewer than
    three pairs of runs kept their answers (``correct``, shape (M,)), or on test sets of several
    sizes: with two seeds no interval of any kind is given.
    """
    import numpy as np

    reference = {run.seed: run for run in group.of(group.reference)}
    total, pairs = np.zeros(0, dtype=np.int64), 0
    for run in group.of(arm):
        if run.seed not in reference:
            continue
        right, left = run.figures.get("correct"), reference[run.seed].figures.get("correct")
        if right is None or left is None or right.ndim != 1 or right.shape != left.shape:
            continue
        # Summed as integers, so that images with equal answers have equal values.
        difference = right.astype(np.int64) - left.astype(np.int64)
        if pairs and difference.shape != total.shape:
            return None
        total = difference + (total if pairs else 0)
        pairs += 1
    if pairs < FEWEST_SEEDS or not total.size:
        return None
    return bootstrap_interval((total / pairs).tolist())


# Arm against arm over the seeds both have finished: numbers only, nothing printed.


def compare_runs(runs: Iterable[Run], reference: str | None = None) -> Comparison:
    """Compare every arm with the reference, recipe by recipe and metric by metric.

    Without a ``reference`` it is the baseline or, in a recipe where none has finished, the first
    arm in the known order that another shares a seed with.

    P-values are corrected over all comparisons of all recipes given; a metric that only describes
    is not one. Runs that are damaged or unfinished are named in ``left_out``.
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
    return Comparison(corrected, compared, tested, left_out(runs), remarks_on(runs))


def _recipe(group: RunGroup) -> RecipeComparison:
    warnings = list(group.warnings)
    metrics = _metrics(group, warnings)
    values = {
        (arm, metric): {
            run.seed: value for run in group.of(arm) if (value := measured(run, metric)) is not None
        }
        for arm in group.arms
        for metric in metrics
    }
    warnings += _unmeasured(group, metrics)
    paper = group.recipe.get("paper") or {}
    scores = {
        (arm, metric): Score(
            summary([*by_seed.values()], bounds(metric)),
            tuple(by_seed),
            _number(paper, arm, metric),
            decimals(metric),
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
    warnings += data_warnings(group.runs)
    warnings += arms_note(group.recipe, group.arms) + metric_notes(metrics)
    warnings += reweighting_note(group.recipe, group.runs) + acting_notes(group)
    if paper and "batchformer" in group.arms and not paper.get("batchformer"):
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


def shots_warnings(recipe: Mapping[str, Any]) -> list[str]:
    """What Many, Medium and Few are, where they are not the paper's."""
    if (recipe.get("data") or {}).get("shots") != "thirds":
        return []
    return [
        "Many, Medium and Few are thirds of the classes by training images here, not the paper's "
        "limits of 100 and 20"
    ]


def data_warnings(runs: Iterable[Run]) -> list[str]:
    """What the runs recorded that a reader should know of their data, each line once."""
    return list(dict.fromkeys(str(line) for run in runs for line in run.data.get("remarks", ())))


def _seeds_warnings(group: RunGroup) -> list[str]:
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
    """A comparison with its outcome, not corrected yet; without either where a metric describes.

    Args:
        result: over the seeds.
        seeds: those that both sides have.
        metric: says whether higher is better, or neither.
        effect: the paper's difference, percent points.
    """
    if metric in DESCRIPTIVE:
        untested = replace(result, p_value=None)
        return Difference(untested, seeds, None, None, effect, None, decimals(metric))
    word = outcome(result, higher_is_better=metric not in LOWER_IS_BETTER)
    needed = None
    if effect and result.sd and result.n >= FEWEST_SEEDS:
        needed = max(FEWEST_SEEDS, seeds_needed(effect, result.sd))
    return Difference(result, seeds, word, None, effect, needed, decimals(metric))


def _metrics(group: RunGroup, warnings: list[str]) -> list[str]:
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


def _unmeasured(group: RunGroup, metrics: Iterable[str]) -> list[str]:
    """What was not measured is said, since it flatters the mean."""
    runs = [run for arm in group.arms for run in group.of(arm)]
    missing = {name: [run for run in runs if measured(run, name) is None] for name in metrics}
    return [
        unmeasured(name, found, len(runs), group.name, "arm")
        for name, found in missing.items()
        if found
    ]


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
