"""Effects over several recipes, and what is printed of them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from batchformer.lab.metrics.intervals import holm, outcome_of, pooled
from batchformer.lab.report.results.comparison import compare_runs, difference_between
from batchformer.lab.report.results.names import LOWER_IS_BETTER
from batchformer.lab.report.results.pooling import Effect, PooledEffects, pool_recipes
from batchformer.lab.report.results.tables import (
    by_recipe,
    effect_rows,
    pooled_headline,
    pooled_notes,
    print_pooled,
    recipe_rows,
)
from helpers.run_folders import RunTree, change_json, recipe_of
from helpers.simulated_networks import known

#: All and ECE of the baseline and of BatchFormer, by recipe and seed.
VALUES = {
    "first": ([(60.0, 9.0), (61.0, 9.5), (60.4, 9.1)], [(60.9, 7.0), (61.5, 7.4), (61.6, 7.3)]),
    "second": ([(50.0, 8.0), (50.8, 8.3), (50.1, 8.1)], [(50.9, 6.2), (51.3, 6.1), (50.5, 6.4)]),
    "third": ([(70.1, 5.0), (70.0, 5.4), (69.5, 5.2)], [(70.4, 3.9), (70.9, 4.1), (70.0, 3.2)]),
}


def write_recipe(
    tree: RunTree, recipe: dict[str, Any], baseline: list[Any], other: list[Any]
) -> None:
    values = {"baseline": baseline, "batchformer": other}
    scores = {arm: [{"all": a, "ece": e} for a, e in each] for arm, each in values.items()}
    tree.write_scores(scores, recipe=recipe)


@pytest.fixture
def together(tree: RunTree) -> PooledEffects:
    papers = {"first": 1.0, "second": 0.4}
    for name, (baseline, other) in VALUES.items():
        paper = {"baseline": {"all": 50.0}, "batchformer": {"all": 50.0 + papers.get(name, 0.0)}}
        recipe = recipe_of(name, paper=paper if name in papers else {})
        write_recipe(tree, recipe, baseline, other)
    return pool_recipes(compare_runs(tree.runs()))


def test_effects_are_means_of_the_recipes_and_corrected_over_all(together: PooledEffects) -> None:
    effect = together.effects["batchformer", "baseline", "all"]
    means = [np.mean([b[0] - a[0] for a, b in zip(*arms, strict=True)]) for arms in VALUES.values()]
    assert effect.pooled.difference == pytest.approx(np.mean(means))
    assert list(effect.recipes) == ["first", "second", "third"]
    assert (effect.pooled.setups, effect.pooled.seeds) == (3, 9)
    assert (effect.paper, effect.printed) == (pytest.approx(0.7), 2)
    small, large = sorted(together.effects.values(), key=lambda effect: effect.pooled.p_value or 0)
    assert small.pooled.p_value is not None and large.pooled.p_value is not None
    assert small.adjusted == pytest.approx(2 * small.pooled.p_value)
    assert large.adjusted == pytest.approx(max(2 * small.pooled.p_value, large.pooled.p_value))
    effect = together.effects["batchformer", "baseline", "ece"]
    assert effect.pooled.high is not None and effect.pooled.high < 0
    assert (effect.outcome, effect.significant) == ("gain", True)
    assert (effect.paper, effect.printed) == (None, 0)


def test_what_is_not_tested_is_not_pooled(tree: RunTree) -> None:
    for name in ("first", "second"):
        for arm, step in (("baseline", 1), ("batchformer", 0)):
            scores = [
                {"knn": 20.0 + step * seed, "uniformity": -2.0 - seed, "val": 40.0 + step * seed}
                for seed in range(3)
            ]
            tree.write_scores({arm: scores}, recipe=recipe_of(name))
    found = pool_recipes(compare_runs(tree.runs()))
    assert [metric for _, _, metric in found.effects] == ["knn"]


def test_recipes_that_share_runs_are_not_pooled_as_two(tree: RunTree) -> None:
    """Another BatchFormer beside the same baseline is compared apart, with that baseline."""
    for name, values in list(VALUES.items())[:2]:
        write_recipe(tree, recipe_of(name), *values)
    wide = recipe_of("first", module__heads=8)
    scores = [{"all": accuracy, "ece": ece} for accuracy, ece in VALUES["first"][1]]
    RunTree(tree.root / "wide").write_scores({"batchformer": scores}, recipe=wide)
    comparison = compare_runs(tree.runs())
    assert len(comparison.recipes) == 3
    found = pool_recipes(comparison)
    assert found.effects["batchformer", "baseline", "all"].pooled.setups == 2
    assert any("shares trainings with first" in line for line in found.left_out)


def test_runs_of_one_name_in_two_folders_are_two_trainings(tree: RunTree) -> None:
    """As my_folder on two data sets, each with its own --runs."""
    for name, values in list(VALUES.items())[:2]:
        recipe = recipe_of("mine", data__name=name)
        write_recipe(RunTree(tree.root / name), recipe, *values)
    found = pool_recipes(compare_runs(tree.runs()))
    assert found.effects["batchformer", "baseline", "all"].pooled.setups == 2
    assert found.left_out == ()


def test_few_seeds_one_recipe_and_sweeps_are_left_out_and_named(tree: RunTree) -> None:
    write_recipe(tree, recipe_of("first"), *VALUES["first"])
    write_recipe(tree, recipe_of("single"), [(50.0, 8.0)], [(50.5, 7.0)])
    write_recipe(tree, recipe_of("two"), *(arm[:2] for arm in VALUES["second"]))
    found = pool_recipes(compare_runs(tree.runs()), ["depth"])
    assert not found.effects and found.pairs == []
    said = "; ".join(found.left_out)
    for name in ("single", "two"):
        assert f"batchformer of {name} has fewer than 3 paired seeds on All, ECE" in said
    assert "depth is a sweep" in said
    assert "first is the only one to have batchformer on All, ECE" in said


def test_copies_and_networks_of_one_training_count_once(tree: RunTree) -> None:
    """A copy says whose it is; probe and neighbours read the same trained networks."""
    for name in ("first", "copy", "knn", "probe"):
        start = "" if name in ("first", "copy") else "pretraining"
        write_recipe(tree, recipe_of(name, start=start), *VALUES["first"])
    for folder in tree.root.glob("copy/*/seed*"):
        change_json(folder / "config.json", taken_from=f"first/{folder.parent.name}/{folder.name}")
    found = pool_recipes(compare_runs(tree.runs()))
    assert len(found.effects["batchformer", "baseline", "all"].recipes) == 2
    said = "; ".join(found.left_out)
    assert "shares trainings with" in said and len(found.left_out) == 2


def test_levels_of_a_sweep_without_its_description_are_left_out(tree: RunTree) -> None:
    for name in ("first", "depth/1", "depth/2"):
        write_recipe(tree, recipe_of(name), *VALUES["first"])
    found = pool_recipes(compare_runs(tree.runs()))
    assert not found.effects
    assert sum("is a level of a sweep" in line for line in found.left_out) == 2


def test_of_two_that_share_trainings_the_one_with_more_seeds_is_kept(tree: RunTree) -> None:
    write_recipe(tree, recipe_of("a_probe", start="pre"), [(50.0, 8.0)], [(51.0, 7.0)])
    write_recipe(tree, recipe_of("b_probe", start="pre"), *VALUES["first"])
    write_recipe(tree, recipe_of("other"), *VALUES["third"])
    found = pool_recipes(compare_runs(tree.runs()))
    assert list(found.effects["batchformer", "baseline", "all"].recipes) == ["b_probe", "other"]


GAIN = {"a_recipe": [0.5, 0.7, 0.6], "another": [0.4, 0.8, 0.5], "third": [0.6, 0.5, 0.9]}
NOISE = {"a_recipe": [0.5, -0.7, 0.1], "another": [-0.4, 0.8, -0.5]}
LESS = {"a_recipe": [-2.0, -2.3, -2.1], "another": [-1.8, -2.4, -2.2]}


def effect_of(metric: str, values: Mapping[str, list[float]], p: float | None) -> Effect:
    recipes = {
        name: known(
            difference_between(
                dict.fromkeys(range(len(each)), 50.0),
                {seed: 50.0 + v for seed, v in enumerate(each)},
                metric,
                (0.0, 1.0),
            )
        )
        for name, each in values.items()
    }
    seeds = [range(len(each)) for each in values.values()]
    found = pooled(list(values.values()), seeds=seeds)
    word = outcome_of(found.low, found.high, higher_is_better=metric not in LOWER_IS_BETTER)
    return Effect(found, recipes, word, p, 1.0, len(recipes))


@pytest.fixture
def effects_found() -> PooledEffects:
    given = {"all": GAIN, "few": NOISE, "ece": LESS}
    p_values = holm([pooled(list(values.values())).p_value for values in given.values()])
    effects = {
        ("batchformer", "baseline", metric): effect_of(metric, values, p)
        for (metric, values), p in zip(given.items(), p_values, strict=True)
    }
    return PooledEffects(effects, ("depth is a sweep, whose levels share runs",))


def printed(effects_found: PooledEffects) -> str:
    out = io.StringIO()
    print_pooled(effects_found, Console(file=out, width=80))
    return out.getvalue()


def test_rows_hold_the_numbers(effects_found: PooledEffects) -> None:
    effects = effects_found.of("batchformer", "baseline")
    rows = {row[0]: row for row in effect_rows(effects)}
    assert rows["All"][1:3] == ("", "+0.61") and rows["All"][-2:] == ("+1.0", "gain")
    assert rows["Few"][1] == "2", "fewer recipes than All has"
    assert rows["Few"][-1] == "not reliable"
    assert rows["ECE"][2].startswith("-2.1") and rows["ECE"][-1] == "gain"
    by_recipe = {row[0]: row for row in recipe_rows(effects)}
    assert by_recipe["a_recipe"] == ("a_recipe", "3", "+0.60", "-0.03", "-2.13")
    assert by_recipe["third"] == ("third", "3", "+0.67", "", "")


def test_the_headline_claims_no_more_than_stands(effects_found: PooledEffects) -> None:
    effects = effects_found.of("batchformer", "baseline")
    said = pooled_headline("batchformer", "baseline", effects)
    assert said.startswith("batchformer, 3 recipes, 9 paired seeds. A gain on All +0.61 [")
    assert "ECE -2.13" in said and "where lower is better" in said
    assert "No reliable difference: Few -0.03" in said
    undone = {"all": effect_of("all", GAIN, 0.2)}
    said = pooled_headline("batchformer", "batchformer_self", undone)
    assert "compared with batchformer_self" in said and "A gain" not in said
    assert "after Holm's it is not significant" in said
    both = {metric: effect_of(metric, GAIN, 0.2) for metric in ("all", "few")}
    assert "they are not significant" in pooled_headline("batchformer", "baseline", both)
    flat = {"all": effect_of("all", {"a": [0.5, 0.5], "b": [0.5, 0.5]}, None)}
    assert "without verdict: All" in pooled_headline("batchformer", "baseline", flat)


def test_eighty_columns_are_enough_and_the_notes_say_what_was_corrected_for(
    effects_found: PooledEffects,
) -> None:
    text = printed(effects_found)
    rows = [line for line in text.splitlines() if line.startswith(("All ", "Few ", "ECE "))]
    assert len(rows) == 3 and all(row.rstrip().endswith(("gain", "reliable")) for row in rows)
    assert "Not pooled: depth is a sweep" in text
    notes = " ".join(pooled_notes(effects_found))
    assert "corrected over all 3 pooled effects" in notes and "numbers for (2 or 3)" in notes


def test_names_are_never_cut(effects_found: PooledEffects) -> None:
    effects = effects_found.of("batchformer", "baseline")
    columns, rows = by_recipe(effects, 80)
    assert columns == ("recipe", "n", "All", "Few", "ECE") and len(rows) == 3
    columns, rows = by_recipe(effects, 30)
    assert columns == ("metric", "recipe", "n", "diff.", "95% interval") and len(rows) == 7
    assert rows[0][:4] == ("All", "a_recipe", "3", "+0.60") and rows[1][0] == ""


def test_nothing_in_common_is_said() -> None:
    text = printed(PooledEffects({}, ("first has no arm and metric in common with another",)))
    assert "No two recipes have" in text and "Not pooled: first" in text
