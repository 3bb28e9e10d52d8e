"""Pool an arm's effect over several recipes.

Pooling is opt-in, because only a person knows which comparisons ask the same question. Runs that
are not independent are left out and named: sweeps, whose levels share runs, and recipes that share
trainings, such as copies or recipes that start from the same networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.metrics.intervals import Outcome, Pooled, holm, outcome_of, pooled
from batchformer.lab.report.results.comparison import (
    ALPHA,
    Comparison,
    Difference,
    RecipeComparison,
)
from batchformer.lab.report.results.names import (
    LOWER_IS_BETTER,
    metric_label,
    sorted_arms,
    sorted_metrics,
)

Key = tuple[str, str, str]  # an arm, the arm it is compared with, and a metric


@dataclass(frozen=True)
class Effect:
    """One arm against another on one metric, over several recipes."""

    pooled: Pooled
    recipes: Mapping[str, Difference]  # by recipe name, the comparison that it contributes
    outcome: Outcome  # of this effect alone, before correction
    adjusted: float | None  # Holm's p-value over all effects
    paper: float | None  # mean of the paper's differences, if it has any
    printed: int  # number of recipes for which the paper has a difference

    @property
    def significant(self) -> bool:
        """Whether the outcome is significant after Holm's correction."""
        return self.adjusted is not None and self.adjusted < ALPHA


@dataclass(frozen=True)
class PooledEffects:
    """Every effect that at least two recipes have, in the order they are shown."""

    effects: Mapping[Key, Effect]
    left_out: tuple[str, ...]  # what was not pooled, and why

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each arm with its reference."""
        return list(dict.fromkeys((arm, reference) for arm, reference, _ in self.effects))

    def of(self, arm: str, reference: str) -> dict[str, Effect]:
        """The effects of this arm by metric."""
        return {
            metric: effect
            for (a, r, metric), effect in self.effects.items()
            if (a, r) == (arm, reference)
        }


def pool_recipes(comparison: Comparison, sweeps: Iterable[str] = ()) -> PooledEffects:
    """Pool the comparisons of several recipes, arm by arm and metric by metric.

    ``sweeps`` are names of sweeps among the runs, which are not pooled.
    """
    independent, left_out = _independent(comparison.recipes)
    left_out += [f"{name} is a sweep, whose levels share runs" for name in sweeps]
    found: dict[Key, dict[str, Difference]] = {}
    for recipe in independent:
        few: dict[str, list[str]] = {}
        for (arm, metric), difference in recipe.differences.items():
            if difference.outcome is None:  # not tested
                continue
            if difference.paired.n < FEWEST_SEEDS:
                few.setdefault(arm, []).append(metric_label(metric))
                continue
            found.setdefault((arm, recipe.reference, metric), {})[recipe.name] = difference
        left_out += [
            f"{arm} of {recipe.name} has fewer than {FEWEST_SEEDS} paired seeds on "
            f"{', '.join(metrics)}"
            for arm, metrics in few.items()
        ]
    effects = {
        key: _effect(key[-1], found[key]) for key in _in_order(found) if len(found[key]) >= 2
    }
    alone: dict[tuple[str, str], list[str]] = {}
    for arm, reference, metric in _in_order(found):
        if (arm, reference, metric) not in effects:
            (name,) = found[arm, reference, metric]
            alone.setdefault((name, arm), []).append(metric_label(metric))
    left_out += [
        f"{name} is the only one to have {arm} on {', '.join(metrics)}"
        for (name, arm), metrics in alone.items()
    ]
    adjusted = holm([effect.pooled.p_value for effect in effects.values()])
    corrected = {
        key: replace(effect, adjusted=p)
        for (key, effect), p in zip(effects.items(), adjusted, strict=True)
    }
    return PooledEffects(corrected, tuple(left_out))


def _effect(metric: str, recipes: Mapping[str, Difference]) -> Effect:
    result = pooled(
        [
            [b - a for a, b in zip(d.paired.baseline, d.paired.other, strict=True)]
            for d in recipes.values()
        ],
        scale=max(abs(v) for d in recipes.values() for v in d.paired.baseline + d.paired.other),
        seeds=[d.seeds for d in recipes.values()],
    )
    word = outcome_of(result.low, result.high, higher_is_better=metric not in LOWER_IS_BETTER)
    papers = [d.paper_effect for d in recipes.values() if d.paper_effect is not None]
    paper = sum(papers) / len(papers) if papers else None
    return Effect(result, recipes, word, None, paper, len(papers))


def _independent(recipes: Sequence[RecipeComparison]) -> tuple[list[RecipeComparison], list[str]]:
    """Recipes that share no training; of those that do, the one with most runs is kept."""
    kept: dict[str, frozenset[str]] = {}
    left_out = []
    for recipe in sorted(recipes, key=lambda one: -len(one.group.runs)):
        trainings = frozenset[str]().union(*(run.trainings for run in recipe.group.runs))
        same = next((name for name, own in kept.items() if own & trainings), None)
        if any("/" in run.recipe_name for run in recipe.group.runs):
            left_out.append(f"{recipe.name} is a level of a sweep, which share runs")
        elif same is not None:
            left_out.append(f"{recipe.name} shares trainings with {same}")
        else:
            kept[recipe.name] = trainings
    return [recipe for recipe in recipes if recipe.name in kept], left_out


def _in_order(keys: Iterable[Key]) -> list[Key]:
    keys = list(keys)
    arms = {arm: i for i, arm in enumerate(sorted_arms(arm for key in keys for arm in key[:2]))}
    metrics = {name: i for i, name in enumerate(sorted_metrics(key[-1] for key in keys))}
    return sorted(keys, key=lambda key: (arms[key[0]], arms[key[1]], metrics[key[2]]))
