"""Recipes of domain generalization say what the protocols and the paper's tables say."""

from __future__ import annotations

import math

import pytest

from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS, rows_without_recipe

LIBRARY = [
    *(f"pacs_{method}" for method in ("erm", "mixstyle", "coral", "irm", "vrex")),
    *("pacs_irm_resnet50", "pacs_vrex_resnet50", "office_home_irm_resnet50"),
]
SWAD = ["pacs_swad", "pacs_swad_resnet50", "vlcs_swad", "terra_incognita_swad"]
SWAD += ["office_home_swad", "office_home_swad_resnet50"]
PAPER = ["pacs_baseline", *LIBRARY, *SWAD]


def test_no_row_of_the_family_is_without_a_recipe() -> None:
    assert not [row for row in rows_without_recipe() if row.task == "domains"]
    named = {row.recipe for row in ROWS if row.task == "domains"}
    assert named == {*PAPER, "visda_mdd"} and named <= set(RECIPES)


def test_the_papers_own_baseline() -> None:
    recipe = find_recipe("pacs_baseline")
    train = recipe.train.in_updates(per_epoch=100)
    assert (train.updates, train.eval_every) == (3_000, 100)
    rates = [lr_factor(recipe.schedule, update, 3_000, 100) for update in (0, 2_399, 2_400, 2_999)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1])


@pytest.mark.parametrize("name", LIBRARY)
def test_the_cosine_begins_anew_where_the_penalty_sets_in(name: str) -> None:
    recipe = find_recipe(name)
    anew = recipe.method in ("irm", "vrex")
    assert recipe.schedule.kind == "cosine" and recipe.schedule.per == "update"
    assert recipe.schedule.restart == (500 if anew else 0)
    assert recipe.hyper.penalty_from == (1 if anew else 0)
    updates = (0, 250, 499, 500, 5_000, 9_999)

    def expected(update: int) -> float:
        late = anew and update >= 500
        done = (update - 500) / 9_500 if late else update / 10_000
        return 0.5 * (1 + math.cos(math.pi * done))

    found = [lr_factor(recipe.schedule, update, 10_000, 500) for update in updates]
    assert found == pytest.approx([expected(update) for update in updates])
    assert found[-1] < 1e-7, "to 0"
