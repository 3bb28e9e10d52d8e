"""Recipes of domain generalization say what the protocols and the paper's tables say."""

from __future__ import annotations

import math

import pytest

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS, rows_without_recipe

PACS = ("art_painting", "cartoon", "sketch", "photo")
HOME = ("art", "clipart", "product", "real_world")
VLCS = ("caltech101", "labelme", "sun09", "voc2007")
TERRA = ("l100", "l38", "l43", "l46")
#: Network, and rate, weight of the penalty and domains in a batch (0: shuffled) in the library.
LIBRARY = {
    "pacs_erm": ("resnet18", "cross_entropy", 1e-3, None, 0),
    "pacs_mixstyle": ("resnet18", "mixstyle", 1e-3, None, 2),
    "pacs_coral": ("resnet18", "coral", 5e-4, 1.0, 3),
    "pacs_irm": ("resnet18", "irm", 5e-4, 1.0, 3),
    "pacs_vrex": ("resnet18", "vrex", 5e-4, 3.0, 3),
    "pacs_irm_resnet50": ("resnet50", "irm", 5e-4, 1.0, 3),
    "pacs_vrex_resnet50": ("resnet50", "vrex", 5e-4, 3.0, 3),
    "office_home_irm_resnet50": ("resnet50", "irm", 5e-4, 1.0, 3),
}
#: Set, network, updates between evaluations, and tolerance ratio.
SWAD = {
    "pacs_swad": ("pacs", "resnet18", 100, 0.3),
    "pacs_swad_resnet50": ("pacs", "resnet50", 100, 0.3),
    "vlcs_swad": ("vlcs", "resnet18", 50, 0.2),
    "office_home_swad": ("office_home", "resnet18", 100, 0.3),
    "office_home_swad_resnet50": ("office_home", "resnet50", 100, 0.3),
    "terra_incognita_swad": ("terra_incognita", "resnet18", 100, 0.3),
}
#: Columns, then the baseline's numbers and BatchFormer's, the average first.
NUMBERS = {
    "pacs_baseline": (PACS, (79.1, 79.9, 73.0, 67.7, 95.7), (79.8, 80.4, 73.8, 68.6, 96.3)),
    "pacs_erm": (PACS, (82.0, 81.3, 76.1, 75.5, 95.4), (82.4, 82.4, 76.4, 75.7, 95.1)),
    "pacs_coral": (PACS, (80.2, 79.2, 75.5, 71.4, 94.7), (80.9, 80.6, 74.7, 73.1, 95.1)),
    "pacs_irm": (PACS, (78.9, 81.0, 71.4, 68.1, 95.0), (79.4, 78.9, 71.0, 71.5, 96.0)),
    "pacs_vrex": (PACS, (81.3, 80.8, 75.3, 73.3, 95.9), (82.2, 82.0, 76.3, 75.2, 95.3)),
    "pacs_mixstyle": (PACS, (83.1, 81.7, 76.8, 80.8, 93.1), (83.7, 84.8, 75.3, 81.1, 93.6)),
    "pacs_swad": (PACS, (82.9, 83.1, 75.9, 77.1, 95.6), (83.9, 84.3, 76.9, 78.2, 95.7)),
    "pacs_irm_resnet50": (PACS, (85.8, 88.2, 79.8, 77.6, 97.6), (86.8, 89.0, 80.1, 79.8, 98.0)),
    "pacs_vrex_resnet50": (PACS, (85.0, 83.8, 81.0, 77.7, 97.7), (85.6, 87.3, 80.2, 77.9, 97.1)),
    "pacs_swad_resnet50": (PACS, (88.1, 89.4, 83.7, 82.5, 97.7), (88.6, 90.2, 84.0, 83.0, 97.3)),
    "vlcs_swad": (VLCS, (76.3, 97.2, 61.4, 71.2, 75.5), (76.9, 97.2, 61.3, 71.7, 77.4)),
    "office_home_irm_resnet50": (
        HOME,
        (69.9, 66.8, 54.9, 77.5, 80.5),
        (70.6, 67.7, 55.5, 78.4, 81.0),
    ),
    "office_home_swad": (HOME, (62.1, 54.5, 49.4, 70.9, 72.7), (64.3, 57.8, 51.0, 73.4, 75.1)),
    "office_home_swad_resnet50": (
        HOME,
        (70.6, 65.9, 58.0, 78.5, 80.2),
        (71.1, 66.7, 57.9, 79.2, 80.6),
    ),
    "terra_incognita_swad": (
        TERRA,
        (42.1, 47.6, 33.8, 53.6, 33.3),
        (44.8, 49.8, 40.3, 55.2, 34.0),
    ),
}


def data_of(recipe: Recipe) -> DomainConfig:
    assert isinstance(recipe.data, DomainConfig)
    return recipe.data


@pytest.mark.parametrize("name", NUMBERS)
def test_the_papers_numbers(name: str) -> None:
    columns, baseline, batchformer = NUMBERS[name]
    paper = find_recipe(name).paper
    assert list(paper) == ["baseline", "batchformer"]
    for arm, values in (("baseline", baseline), ("batchformer", batchformer)):
        assert next(iter(paper[arm])) == "average"
        assert paper[arm] == dict(zip(("average", *columns), values, strict=True))


def test_no_row_of_the_family_is_without_a_recipe() -> None:
    assert not [row for row in rows_without_recipe() if row.task == "domains"]
    named = {row.recipe for row in ROWS if row.task == "domains"}
    assert named == {*NUMBERS, "visda_mdd"} and named <= set(RECIPES)


@pytest.mark.parametrize("name", [*NUMBERS, "my_domains"])
def test_what_all_share(name: str) -> None:
    recipe, data = find_recipe(name), data_of(find_recipe(name))
    assert recipe.task == "domains" and recipe.weights == "timm" and recipe.stride == "auto"
    assert data.target == "each" and not data.source and data.size == 224 and not data.adapt
    assert recipe.train.select_on == "val" and recipe.train.precision == "fp32"
    module = recipe.module
    assert (module.heads, module.layers, module.dropout) == (4, 1, 0.5)
    assert module.trained and (module.streams, module.attend) == ("shared", "batch")
    assert module.lr_factor == 1.0


def test_the_papers_own_baseline() -> None:
    recipe = find_recipe("pacs_baseline")
    data = data_of(recipe)
    assert recipe.model == "resnet18.tv_in1k" and recipe.method == "cross_entropy"
    assert (data.name, data.sampler, data.augment) == ("pacs", "shuffle", "scale")
    assert (data.held_out, data.scored_on) == (0.1, "all")
    assert (recipe.optim.name, recipe.optim.lr) == ("sgd", 1e-3)
    assert recipe.train.epochs == 30 and recipe.train.batch_size == 64
    train = recipe.train.in_updates(per_epoch=100)
    assert (train.updates, train.eval_every) == (3_000, 100)
    rates = [lr_factor(recipe.schedule, update, 3_000, 100) for update in (0, 2_399, 2_400, 2_999)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1])
    assert not recipe.hyper.frozen_norm and not recipe.hyper.feature_dropout


@pytest.mark.parametrize("name", LIBRARY)
def test_the_transfer_librarys_protocol(name: str) -> None:
    network, method, rate, penalty, domains = LIBRARY[name]
    recipe = find_recipe(name)
    data, hyper, optim, train = data_of(recipe), recipe.hyper, recipe.optim, recipe.train
    assert (recipe.model, recipe.method) == (f"{network}.tv_in1k", method)
    assert (data.augment, data.held_out, data.scored_on) == ("domain", 0.2, "all")
    assert (train.batch_size, train.updates, train.eval_every) == (36, 10_000, 500)
    assert train.epochs == 0 and not hyper.swad
    assert (optim.name, optim.momentum, optim.nesterov) == ("sgd", 0.9, True)
    assert (optim.lr, optim.weight_decay) == (rate, 5e-4)
    if domains:
        assert (data.sampler, data.domains_in_batch, data.epoch) == ("domains", domains, 500)
    else:
        assert (data.sampler, data.domains_in_batch, data.epoch) == ("shuffle", 0, 0)
    if penalty is not None:
        assert hyper.penalty == penalty
    pacs = name.startswith("pacs")
    assert data.name == ("pacs" if pacs else "office_home")
    assert hyper.frozen_norm == pacs and hyper.feature_dropout == (0.1 if pacs else 0.0)


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


def test_mixstyle_and_irm_options() -> None:
    hyper = find_recipe("pacs_mixstyle").hyper
    assert hyper.mixstyle_after == ("layer1", "layer2", "layer3")
    assert (hyper.mixstyle_p, hyper.mixstyle_alpha) == (0.5, 0.1)
    assert find_recipe("office_home_irm_resnet50").hyper.mixstyle_after == ("layer1", "layer2")
    for name in ("pacs_irm", "pacs_irm_resnet50", "office_home_irm_resnet50"):
        assert find_recipe(name).hyper.irm_grouping == "by_domain"


@pytest.mark.parametrize("name", [*SWAD, "my_domains"])
def test_swads_protocol(name: str) -> None:
    own = name == "my_domains"
    data_name, network, every, ratio = ("tree", "resnet50", 100, 0.3) if own else SWAD[name]
    recipe = find_recipe(name)
    data, hyper, optim, train = data_of(recipe), recipe.hyper, recipe.optim, recipe.train
    assert (recipe.model, recipe.method) == (f"{network}.tv_in1k", "cross_entropy")
    assert (data.name, data.sampler, data.domains_in_batch) == (data_name, "domains", 0)
    assert (data.augment, data.held_out) == ("domain", 0.2)
    assert data.scored_on == ("all" if own else "in")
    assert (optim.name, optim.lr, optim.weight_decay) == ("adam", 5e-5, 0.0)
    assert recipe.schedule.kind == "constant" and recipe.schedule.restart == 0
    # A tree of one's own has any number of domains: 32 images of each.
    assert train.batch_size == (0 if own else 3 * 32)
    assert train.updates == 5_000 and train.eval_every == every
    assert hyper.swad and hyper.frozen_norm and hyper.feature_dropout == 0
    assert (hyper.swad_converge, hyper.swad_tolerance, hyper.swad_ratio) == (3, 6, ratio)
    assert not train.ema and bool(recipe.paper) != own
