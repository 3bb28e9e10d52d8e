"""Recipes of compositional zero-shot learning say what the protocols and the paper's table say."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.lab.config.data import PairConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.metrics.compositional import CompositionalResult
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS, rows_without_recipe

COLUMNS = ("auc", "hm", "seen", "unseen", "attribute", "object")
SETS = ("mit_states", "ut_zappos", "c_gqa")
CGE, COMPCOS = ({f"{name}_{method}" for name in SETS} for method in ("cge", "compcos"))
#: Closed world, margin, and the epochs over which it grows.
OPEN = {
    "mit_states_compcos_open": ("mit_states_compcos", 0.4, 15),
    "ut_zappos_compcos_open": ("ut_zappos_compcos", 1.0, 100),
}
OWN = {"my_pairs_cge": "mit_states_cge", "my_pairs_compcos": "mit_states_compcos"}


def data_of(recipe: Recipe) -> PairConfig:
    assert isinstance(recipe.data, PairConfig)
    return recipe.data


def differing(one: object, other: object) -> set[str]:
    """Fields of two configurations of a kind that are not the same."""
    fields = dataclasses.fields(one)  # type: ignore[arg-type]
    return {f.name for f in fields if getattr(one, f.name) != getattr(other, f.name)}


def test_columns_are_scores_of_a_run() -> None:
    fields = [field.name for field in dataclasses.fields(CompositionalResult)]
    assert tuple(fields[: len(COLUMNS)]) == COLUMNS


def test_no_row_of_the_family_is_without_a_recipe() -> None:
    assert not [row for row in rows_without_recipe() if row.task == "zero_shot"]
    named = {row.recipe for row in ROWS if row.task == "zero_shot" and row.recipe}
    assert named == {*CGE, "mit_states_compcos", "ut_zappos_compcos", "cub_ce_gzsl"}
    family = {name for name in RECIPES if find_recipe(name).task == "compositional"}
    assert family == {*CGE, *COMPCOS, *OPEN, *OWN}


@pytest.mark.parametrize("name", OPEN)
def test_the_open_world_has_margins_and_a_mask(name: str) -> None:
    base, margin, epochs = OPEN[name]
    recipe, closed = find_recipe(name), find_recipe(base)
    assert differing(recipe, closed) == {"name", "summary", "table", "data", "hyper"} | (
        {"paper"} if closed.paper else set()
    )
    assert not recipe.paper and recipe.table == "not in the paper"
    assert differing(recipe.data, closed.data) == {"world", "mask"}
    data, hyper = data_of(recipe), recipe.hyper
    assert data.world == "open" and data.mask
    assert (hyper.feasibility, hyper.feasibility_margin) == ("margin", margin)
    assert hyper.feasibility_epochs == epochs
    settings = {"feasibility", "feasibility_margin", "feasibility_epochs"}
    assert differing(hyper, closed.hyper) <= settings


@pytest.mark.parametrize("name", OWN)
def test_a_table_of_ones_own(name: str) -> None:
    recipe, published = find_recipe(name), find_recipe(OWN[name])
    data, train = data_of(recipe), recipe.train
    assert differing(data, published.data) == {"name", "table", "vectors"}
    assert (data.name, data.table, data.vectors) == ("table", "pairs.csv", ("vectors.txt",))
    assert recipe.hyper == published.hyper and recipe.method == published.method
    assert recipe.optim == published.optim and recipe.schedule == published.schedule
    assert (recipe.model, recipe.weights) == ("resnet50", "timm")
    assert (train.batch_size, train.updates, train.eval_every) == (64, 2_000, 100)
    assert train.epochs == 0 and train.select_on == "val" and not train.drop_last
    assert not recipe.paper
    # The encoder's rate is that of the published sets' recipes too: 1e-6.
    assert recipe.module == published.module
    assert recipe.module.lr_factor * recipe.optim.lr == pytest.approx(1e-6)
