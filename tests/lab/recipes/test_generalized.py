"""Recipes of generalized zero-shot learning say what the protocol and the appendix say."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.config.data import FeatureConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import FeatureFeed
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.methods import ce_gzsl
from batchformer.lab.metrics.generalized import generalized_accuracy
from batchformer.lab.recipes import RECIPES, find_recipe

#: Training rows of CUB.
CUB_ROWS = 7057
TRAINED = ["cub_ce_gzsl", "my_features_ce_gzsl"]


def data_of(recipe: Recipe) -> FeatureConfig:
    assert isinstance(recipe.data, FeatureConfig)
    return recipe.data


def test_what_the_family_has() -> None:
    family = {name for name in RECIPES if find_recipe(name).task == "generalized"}
    assert {*TRAINED} <= family
    assert {name for name in family if find_recipe(name).method == "ce_gzsl"} == {*TRAINED}
    assert {name for name in family if find_recipe(name).paper} == {"cub_ce_gzsl"}
    for name in family:
        recipe, data = find_recipe(name), data_of(find_recipe(name))
        assert recipe.model == recipe.weights == "" and data.unseen == "test"
        assert data.name == ("cub" if name.startswith("cub") else "npz") and data.root is None


def test_columns_of_the_paper_are_scores_of_a_run() -> None:
    measured = generalized_accuracy(torch.tensor([50.0, 40.0]), unseen=torch.tensor([1]))
    assert list(find_recipe("cub_ce_gzsl").paper["baseline"]) == list(measured)


def test_widths_that_no_recipe_sets() -> None:
    assert (ce_gzsl.EMBEDDING, ce_gzsl.DIRECTION, ce_gzsl.COMPARATOR) == (2048, 512, 2048)


def test_an_epoch_of_cub_is_four_updates_of_the_generator() -> None:
    train = find_recipe("cub_ce_gzsl").train
    rows = torch.zeros(CUB_ROWS, 1), torch.zeros(CUB_ROWS, dtype=torch.int64)
    per_epoch = FeatureFeed(*rows, train.batch_size, seed=0).per_epoch
    assert per_epoch == 4
    counted = train.in_updates(per_epoch)
    assert (counted.updates, counted.eval_every) == (8_000, 200)


@pytest.mark.parametrize("epoch", [0, 1, 99, 100, 101, 199, 200, 1_234, 1_899, 1_900, 1_999])
def test_the_rate_falls_every_hundred_epochs(epoch: int) -> None:
    schedule = find_recipe("cub_ce_gzsl").schedule
    for update in (4 * epoch, 4 * epoch + 3):
        assert lr_factor(schedule, update, 8_000, 4) == pytest.approx(0.99 ** (epoch // 100))
