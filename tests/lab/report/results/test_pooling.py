from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchformer.lab.report.results.comparison import compare_runs
from batchformer.lab.report.results.pooling import PooledEffects, pool_recipes
from run_folders import RunTree, recipe_of, write_run

Writer = Callable[..., Any]

#: All and ECE of the baseline and of BatchFormer, by recipe and seed.
VALUES = {
    "first": ([(60.0, 9.0), (61.0, 9.5), (60.4, 9.1)], [(60.9, 7.0), (61.5, 7.4), (61.6, 7.3)]),
    "second": ([(50.0, 8.0), (50.8, 8.3), (50.1, 8.1)], [(50.9, 6.2), (51.3, 6.1), (50.5, 6.4)]),
    "third": ([(70.1, 5.0), (70.0, 5.4), (69.5, 5.2)], [(70.4, 3.9), (70.9, 4.1), (70.0, 3.2)]),
}


def write_recipe(
    write: Writer, recipe: dict[str, Any], baseline: list[Any], other: list[Any]
) -> None:
    for arm, values in (("baseline", baseline), ("batchformer", other)):
        for seed, (accuracy, ece) in enumerate(values):
            write(arm, seed, recipe=recipe, scores={"all": accuracy, "ece": ece})


@pytest.fixture
def together(tree: RunTree) -> PooledEffects:
    papers = {"first": 1.0, "second": 0.4}
    for name, (baseline, other) in VALUES.items():
        paper = {"baseline": {"all": 50.0}, "batchformer": {"all": 50.0 + papers.get(name, 0.0)}}
        recipe = recipe_of(name, paper=paper if name in papers else {})
        write_recipe(tree.write, recipe, baseline, other)
    return pool_recipes(compare_runs(tree.runs()))


def test_the_effect_is_the_mean_of_the_recipes_effects(together: PooledEffects) -> None:
    effect = together.effects["batchformer", "baseline", "all"]
    means = [np.mean([b[0] - a[0] for a, b in zip(*arms, strict=True)]) for arms in VALUES.values()]
    assert effect.pooled.difference == pytest.approx(np.mean(means))
    assert list(effect.recipes) == ["first", "second", "third"]
    assert (effect.pooled.setups, effect.pooled.seeds) == (3, 9)
    assert (effect.paper, effect.printed) == (pytest.approx(0.7), 2)


def test_p_values_are_corrected_over_all_effects(together: PooledEffects) -> None:
    small, large = sorted(together.effects.values(), key=lambda effect: effect.pooled.p_value or 0)
    assert small.pooled.p_value is not None and large.pooled.p_value is not None
    assert small.adjusted == pytest.approx(2 * small.pooled.p_value)
    assert large.adjusted == pytest.approx(max(2 * small.pooled.p_value, large.pooled.p_value))


def test_a_lower_calibration_error_is_a_gain(together: PooledEffects) -> None:
    effect = together.effects["batchformer", "baseline", "ece"]
    assert effect.pooled.high is not None and effect.pooled.high < 0
    assert (effect.outcome, effect.stands) == ("gain", True)
    assert (effect.paper, effect.printed) == (None, 0)


def test_what_only_describes_is_not_pooled(tree: RunTree) -> None:
    for name in ("first", "second"):
        for arm in ("baseline", "batchformer"):
            for seed in range(3):
                scores = {"knn": 20.0 + seed * (arm == "baseline"), "uniformity": -2.0 - seed}
                tree.write(arm, seed, recipe=recipe_of(name), scores=scores)
    found = pool_recipes(compare_runs(tree.runs()))
    assert [metric for _, _, metric in found.effects] == ["knn"]


def test_recipes_that_share_runs_are_not_pooled_as_two(tree: RunTree) -> None:
    """Another BatchFormer beside the same baseline is compared apart, with that baseline."""
    for name, values in list(VALUES.items())[:2]:
        write_recipe(tree.write, recipe_of(name), *values)
    wide = recipe_of("first", module__heads=8)
    for seed, (accuracy, ece) in enumerate(VALUES["first"][1]):
        scores = {"all": accuracy, "ece": ece}
        write_run(tree.root / "wide", "batchformer", seed, recipe=wide, scores=scores)
    comparison = compare_runs(tree.runs())
    assert len(comparison.recipes) == 3
    found = pool_recipes(comparison)
    assert found.effects["batchformer", "baseline", "all"].pooled.setups == 2
    assert any("shares trainings with first" in line for line in found.left_out)


def test_few_seeds_one_recipe_and_sweeps_are_left_out_and_named(tree: RunTree) -> None:
    write_recipe(tree.write, recipe_of("first"), *VALUES["first"])
    write_recipe(tree.write, recipe_of("single"), [(50.0, 8.0)], [(50.5, 7.0)])
    write_recipe(tree.write, recipe_of("two"), *(arm[:2] for arm in VALUES["second"]))
    found = pool_recipes(compare_runs(tree.runs()), ["depth"])
    assert not found.effects and found.pairs == []
    said = "; ".join(found.left_out)
    for name in ("single", "two"):
        assert f"batchformer of {name} has fewer than 3 paired seeds on All, ECE" in said
    assert "depth is a sweep" in said
    assert "first is the only one to have batchformer on All, ECE" in said


def test_a_metric_that_one_recipe_has_alone_is_named(tree: RunTree) -> None:
    for name, metrics in (("first", ("all", "ece")), ("second", ("all",))):
        for arm, add in (("baseline", 0.0), ("batchformer", 1.0)):
            for seed in range(3):
                scores = dict.fromkeys(metrics, 50.0 + add * seed)
                tree.write(arm, seed, recipe=recipe_of(name), scores=scores)
    found = pool_recipes(compare_runs(tree.runs()))
    assert [metric for *_, metric in found.effects] == ["all"]
    assert found.left_out == ("first is the only one to have batchformer on ECE",)


def test_copies_and_networks_of_one_training_count_once(tree: RunTree) -> None:
    """A copy says whose it is; probe and neighbours read the same trained networks."""
    for name in ("first", "copy", "knn", "probe"):
        start = "" if name in ("first", "copy") else "pretraining"
        write_recipe(tree.write, recipe_of(name, start=start), *VALUES["first"])
    for path in tree.root.glob("copy/*/seed*/config.json"):
        config = json.loads(path.read_text())
        origin = f"first/{config['arm']}/seed{config['seed']}"
        path.write_text(json.dumps(config | {"taken_from": origin}))
    found = pool_recipes(compare_runs(tree.runs()))
    assert len(found.effects["batchformer", "baseline", "all"].recipes) == 2
    said = "; ".join(found.left_out)
    assert "shares trainings with" in said and len(found.left_out) == 2


def test_levels_of_a_sweep_without_its_description_are_left_out(tree: RunTree) -> None:
    for name in ("first", "depth/1", "depth/2"):
        write_recipe(tree.write, recipe_of(name), *VALUES["first"])
    found = pool_recipes(compare_runs(tree.runs()))
    assert not found.effects
    assert sum("is a level of a sweep" in line for line in found.left_out) == 2


def test_of_two_that_share_trainings_the_one_with_more_seeds_is_kept(tree: RunTree) -> None:
    write_recipe(tree.write, recipe_of("a_probe", start="pre"), [(50.0, 8.0)], [(51.0, 7.0)])
    write_recipe(tree.write, recipe_of("b_probe", start="pre"), *VALUES["first"])
    write_recipe(tree.write, recipe_of("other"), *VALUES["third"])
    found = pool_recipes(compare_runs(tree.runs()))
    assert list(found.effects["batchformer", "baseline", "all"].recipes) == ["b_probe", "other"]


def test_three_equal_recipes_are_as_sure_as_their_seeds(tree: RunTree) -> None:
    """Equal effects have no spread among themselves: the interval is then that of seeds."""
    baseline, other = VALUES["first"]
    for name in ("first", "second", "third"):
        write_recipe(tree.write, recipe_of(name), baseline, other)
    found = pool_recipes(compare_runs(tree.runs()))
    effect = found.effects["batchformer", "baseline", "all"].pooled
    differences = [b[0] - a[0] for a, b in zip(baseline, other, strict=True)]
    error = np.std(differences, ddof=1) / np.sqrt(9)
    assert effect.spread == "seeds" and effect.low is not None
    assert effect.difference - effect.low == pytest.approx(stats.t.ppf(0.975, 6) * error)
