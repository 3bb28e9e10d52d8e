"""Recipes of compositional zero-shot learning say what the protocols and the paper's table say."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.lab.config.data import PairConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.metrics.compositional import CompositionalResult
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS, rows_without_recipe

COLUMNS = ("auc", "hm", "seen", "unseen", "attribute", "object")
#: The baseline's numbers, and BatchFormer's where the paper has them.
NUMBERS = {
    "mit_states_cge": ((6.3, 20.0, 31.6, 27.3, 30.3, 34.5), (6.7, 20.6, 33.2, 27.7, 30.8, 34.7)),
    "ut_zappos_cge": ((31.5, 46.5, 60.3, 64.5, 46.3, 74.4), (34.6, 49.0, 62.5, 69.2, 49.7, 75.6)),
    "c_gqa_cge": ((3.7, 14.9, 30.8, 14.7, 15.8, 29.0), (3.8, 15.5, 31.3, 14.7, 15.3, 30.0)),
    "mit_states_compcos": ((4.5, 16.4, 25.3, 24.6, 27.9, 31.8), None),
    "ut_zappos_compcos": ((28.7, 43.1, 59.8, 62.5, 44.7, 73.5), None),
}
#: Set, files of vectors, channels of the image embedding (0: none), batch and epochs.
CGE = {
    "mit_states_cge": ("mit_states", ("fasttext.txt", "word2vec.txt"), 0, 128, 100),
    "ut_zappos_cge": ("ut_zappos", ("word2vec.txt",), 300, 128, 100),
    "c_gqa_cge": ("c_gqa", ("word2vec.txt",), 0, 256, 200),
}
#: Set, files of vectors, channels of the embedding, and scale of the cosines.
COMPCOS = {
    "mit_states_compcos": ("mit_states", ("fasttext.txt", "word2vec.txt"), 600, 20.0),
    "ut_zappos_compcos": ("ut_zappos", ("word2vec.txt",), 300, 50.0),
    "c_gqa_compcos": ("c_gqa", ("word2vec.txt",), 300, 100.0),
}
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


@pytest.mark.parametrize("name", NUMBERS)
def test_the_papers_numbers(name: str) -> None:
    paper = find_recipe(name).paper
    given = dict(zip(("baseline", "batchformer"), NUMBERS[name], strict=True))
    expected = {arm: values for arm, values in given.items() if values is not None}
    assert list(paper) == list(expected)
    for arm, values in expected.items():
        assert list(paper[arm].items()) == list(zip(COLUMNS, values, strict=True))


def test_columns_are_scores_of_a_run() -> None:
    fields = [field.name for field in dataclasses.fields(CompositionalResult)]
    assert tuple(fields[: len(COLUMNS)]) == COLUMNS


def test_no_row_of_the_family_is_without_a_recipe() -> None:
    assert not [row for row in rows_without_recipe() if row.task == "zero_shot"]
    named = {row.recipe for row in ROWS if row.task == "zero_shot" and row.recipe}
    assert named == {*NUMBERS, "cub_ce_gzsl"}
    family = {name for name in RECIPES if find_recipe(name).task == "compositional"}
    assert family == {*CGE, *COMPCOS, *OPEN, *OWN}


@pytest.mark.parametrize("name", [*CGE, *COMPCOS, *OPEN])
def test_what_all_share(name: str) -> None:
    recipe, data, module = find_recipe(name), data_of(find_recipe(name)), find_recipe(name).module
    assert (recipe.model, recipe.weights) == ("resnet18.tv_in1k", "timm")
    assert data.size == 224 and data.table is None and not data.replacements
    assert data.missing_words == "raise"
    optim, train = recipe.optim, recipe.train
    assert (optim.name, optim.lr, optim.weight_decay) == ("adam", 5e-5, 5e-5)
    assert optim.betas == (0.9, 0.999)
    assert recipe.schedule.kind == "constant" and recipe.schedule.warmup == 0
    assert lr_factor(recipe.schedule, 9_999, 10_000, 10) == 1
    assert train.select_on == "val" and not train.drop_last and train.precision == "fp32"
    assert recipe.hyper.pair_dropout == 0.5
    assert (module.heads, module.layers, module.dropout) == (4, 1, 0.5)
    assert module.trained and (module.streams, module.attend) == ("shared", "batch")
    assert (module.loss_scale, module.mixed_weight) == ("mean", 1.0)
    assert module.lr_factor * optim.lr == pytest.approx(1e-6)


@pytest.mark.parametrize("name", CGE)
def test_cges_protocol(name: str) -> None:
    data_name, vectors, embedding, batch, epochs = CGE[name]
    recipe, data = find_recipe(name), data_of(find_recipe(name))
    assert recipe.method == "cge" and (data.name, data.vectors) == (data_name, vectors)
    assert (data.world, data.mask, data.augment) == ("closed", False, "resized")
    hyper, train = recipe.hyper, recipe.train
    assert (hyper.image_embedding, hyper.graph_hidden) == (embedding, 4096)
    assert recipe.optim.lr * hyper.backbone_lr_factor == pytest.approx(5e-6)
    assert (train.batch_size, train.epochs, train.eval_epochs) == (batch, epochs, 2)
    counted = train.in_updates(per_epoch=10)
    assert (counted.updates, counted.eval_every) == (10 * epochs, 20)


@pytest.mark.parametrize("name", COMPCOS)
def test_compcos_protocol(name: str) -> None:
    data_name, vectors, embedding, scale = COMPCOS[name]
    recipe, data = find_recipe(name), data_of(find_recipe(name))
    assert recipe.method == "compcos" and (data.name, data.vectors) == (data_name, vectors)
    # Features were computed once, of images as at test.
    assert (data.world, data.mask, data.augment) == ("closed", False, "none")
    hyper, train = recipe.hyper, recipe.train
    assert (hyper.image_embedding, hyper.image_hidden) == (embedding, 768)
    assert hyper.cosine_scale == scale and hyper.feasibility == "none"
    assert hyper.frozen_mode == "eval"
    assert (train.batch_size, train.epochs) == (128, 300) and not train.epochs % train.eval_epochs


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
