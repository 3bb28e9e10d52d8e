from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from batchformer.lab.metrics.intervals import holm, outcome_of, paired, pooled
from batchformer.lab.report.results.comparison import difference_of
from batchformer.lab.report.results.names import LOWER_IS_BETTER
from batchformer.lab.report.results.pooling import Effect, PooledEffects
from batchformer.lab.report.results.tables import (
    by_recipe,
    effect_rows,
    pooled_headline,
    pooled_notes,
    print_pooled,
    recipe_rows,
)

GAIN = {"a_recipe": [0.5, 0.7, 0.6], "another": [0.4, 0.8, 0.5], "third": [0.6, 0.5, 0.9]}
NOISE = {"a_recipe": [0.5, -0.7, 0.1], "another": [-0.4, 0.8, -0.5]}
LESS = {"a_recipe": [-2.0, -2.3, -2.1], "another": [-1.8, -2.4, -2.2]}


def effect_of(metric: str, values: Mapping[str, list[float]], p: float | None) -> Effect:
    recipes = {
        name: difference_of(
            paired([50.0] * len(each), [50.0 + v for v in each]),
            tuple(range(len(each))),
            metric,
            1.0,
        )
        for name, each in values.items()
    }
    found = pooled(list(values.values()))
    word = outcome_of(found.low, found.high, higher_is_better=metric not in LOWER_IS_BETTER)
    return Effect(found, recipes, word, p, 1.0, len(recipes))


@pytest.fixture
def together() -> PooledEffects:
    given = {"all": GAIN, "few": NOISE, "ece": LESS}
    p_values = holm([pooled(list(values.values())).p_value for values in given.values()])
    effects = {
        ("batchformer", "baseline", metric): effect_of(metric, values, p)
        for (metric, values), p in zip(given.items(), p_values, strict=True)
    }
    return PooledEffects(effects, ("depth is a sweep, whose levels share runs",))


def printed(together: PooledEffects) -> str:
    out = io.StringIO()
    print_pooled(together, Console(file=out, width=80))
    return out.getvalue()


def test_rows_hold_the_numbers(together: PooledEffects) -> None:
    effects = together.of("batchformer", "baseline")
    rows = {row[0]: row for row in effect_rows(effects)}
    assert rows["All"][1:3] == ("", "+0.61") and rows["All"][-2:] == ("+1.0", "gain")
    assert rows["Few"][1] == "2", "fewer recipes than All has"
    assert rows["Few"][-1] == "inside the noise"
    assert rows["ECE"][2].startswith("-2.1") and rows["ECE"][-1] == "gain"
    by_recipe = {row[0]: row for row in recipe_rows(effects)}
    assert by_recipe["a_recipe"] == ("a_recipe", "3", "+0.60", "-0.03", "-2.13")
    assert by_recipe["third"] == ("third", "3", "+0.67", "", "")


def test_the_headline_claims_no_more_than_stands(together: PooledEffects) -> None:
    effects = together.of("batchformer", "baseline")
    said = pooled_headline("batchformer", "baseline", effects)
    assert said.startswith("batchformer, 3 recipes, 9 paired seeds. A gain on All +0.61 [")
    assert "ECE -2.13" in said and "where lower is better" in said
    assert "Inside the noise: Few -0.03" in said
    undone = {"all": effect_of("all", GAIN, 0.2)}
    said = pooled_headline("batchformer", "batchformer_self", undone)
    assert "compared with batchformer_self" in said and "A gain" not in said
    assert "after Holm's it is not significant" in said
    both = {metric: effect_of(metric, GAIN, 0.2) for metric in ("all", "few")}
    assert "they are not significant" in pooled_headline("batchformer", "baseline", both)
    flat = {"all": effect_of("all", {"a": [0.5, 0.5], "b": [0.5, 0.5]}, None)}
    assert "without verdict: All" in pooled_headline("batchformer", "baseline", flat)


def test_eighty_columns_are_enough(together: PooledEffects) -> None:
    text = printed(together)
    rows = [line for line in text.splitlines() if line.startswith(("All ", "Few ", "ECE "))]
    assert len(rows) == 3 and all(row.rstrip().endswith(("gain", "noise")) for row in rows)
    assert "Not pooled: depth is a sweep" in text


def test_notes_say_what_was_corrected_for_and_what_the_paper_has(together: PooledEffects) -> None:
    notes = " ".join(pooled_notes(together))
    assert "corrected over all 3 pooled effects" in notes and "numbers for (2 or 3)" in notes


def test_names_are_never_cut(together: PooledEffects) -> None:
    effects = together.of("batchformer", "baseline")
    columns, rows = by_recipe(effects, 80)
    assert columns == ("recipe", "n", "All", "Few", "ECE") and len(rows) == 3
    columns, rows = by_recipe(effects, 30)
    assert columns == ("metric", "recipe", "n", "diff.", "95% interval") and len(rows) == 7
    assert rows[0][:4] == ("All", "a_recipe", "3", "+0.60") and rows[1][0] == ""


def test_nothing_in_common_is_said() -> None:
    text = printed(PooledEffects({}, ("first has no arm and metric in common with another",)))
    assert "No two recipes have" in text and "Not pooled: first" in text
