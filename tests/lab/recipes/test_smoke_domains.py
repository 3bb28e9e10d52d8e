"""Every recipe of several domains trains: two updates at 32 pixels, on noise laid out as its data.

Networks have random weights, and are the smaller ones of their kind; losses, optimizers and
samplers are the recipes' own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import DomainConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.sets.domain_layouts import DOMAIN_SETS
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.swad import Swad
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.runs.sub_runs import targets_of
from batchformer.lab.tasks.base import Task
from batchformer.lab.tasks.domains import read_domains
from helpers.data_files import save_noise
from helpers.networks import only_built
from helpers.smoke import CPU, moved_parts, part_names, scores, tiny, two_updates

pytestmark = pytest.mark.usefixtures("one_block")
NAMES = [name for name in RECIPES if find_recipe(name).task == "domains"]
#: The same with a larger network, which test_networks.py builds.
LARGER = ("pacs_irm_resnet50", "pacs_vrex_resnet50", "pacs_swad_resnet50")
LARGER += ("office_home_swad_resnet50",)
#: Folder, folders of the domains, classes, images of a class in a domain: two where this takes no
#: time. That these are the published names is in test_domain_layouts.py.
TREES = {
    name: (
        known.folders[-1],
        [folders[0] for folders in known.domains.values()],
        known.names or [f"class{number:02}" for number in range(known.classes)],
        2 if known.classes < 10 else 1,
    )
    for name, known in DOMAIN_SETS.items()
}
TREES["tree"] = ("mine", ["by day", "by night", "in rain"], ["ant", "bee"], 4)
#: The first domain of each set, by the name that scores have.
FIRST = {name: min(known.domains) for name, known in DOMAIN_SETS.items()}
FIRST |= {"tree": "by day", "rotated_digits": "r0"}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place, stream = tmp_path_factory.mktemp("trees"), np.random.default_rng(0)
    for folder, domains, classes, each in TREES.values():
        for number, domain in enumerate(domains):
            for name, image in itertools.product(classes, range(each)):
                file = f"pic_{image:03}.{'png' if number else 'jpg'}"
                save_noise(place / folder / domain / name / file, stream)
    yield place
    load_task.cache_clear()
    read_domains.cache_clear()


def data_of(recipe: Recipe) -> DomainConfig:
    assert isinstance(recipe.data, DomainConfig)
    return recipe.data


def small(name: str, trees: Path, target: str | None = None) -> Recipe:
    """The recipe at 32 pixels on a small tree, with six images in a batch."""
    recipe = find_recipe(name)
    data, changes = data_of(recipe), {}
    if data.of_files:
        # A known set is also found from the folder above it.
        root = trees / TREES["tree"][0] if data.name == "tree" else trees
        changes |= {"root": str(root), "size": 32}
    if data.target == "each":
        changes["target"] = target or FIRST[data.name]
    size = 10 if data.name == "rotated_digits" else 6
    recipe = tiny(recipe, changes, {"batch_size": size, "updates": 2, "epochs": 0, "eval_every": 0})
    # Without its weights a network with frozen normalisation diverges at the recipe's rate.
    return recipe.changed(optim={"lr": recipe.optim.lr / 100})


def metric_names(recipe: Recipe) -> list[str]:
    data = data_of(recipe)
    return [data.target, "mean_class"] if data.adapt else [data.target, "val", "val_loss"]


def updated(recipe: Recipe, task: Task, method: Method) -> set[str]:
    """Parts of the method that two updates moved; with SWAD the average is scored as well."""

    def look(step: int, batch: dict[str, Any], losses: Mapping[str, float]) -> None:
        assert len(batch["x"]) == recipe.train.batch_size
        assert ("x_target" in batch) == data_of(recipe).adapt
        assert ("penalty" in losses) == (recipe.method in ("coral", "irm", "vrex", "mdd"))

    def end(feed: Any) -> None:
        if recipe.hyper.swad:
            swad = Swad(method, (1, 1, 0.3))
            swad.add(method)
            swad.tell(scores(method, task, recipe))
            averaged = swad.averaged(method, [feed.batch(0)["x"]])
            assert list(scores(averaged, task, recipe)) == metric_names(recipe)

    return moved_parts(two_updates(recipe, task, method, look, end), method)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LARGER])
def test_two_updates(name: str, trees: Path) -> None:
    recipe = small(name, trees)
    task = load_task(recipe.data, CPU)
    method = build(with_arm(recipe, "batchformer"), 0, task)
    expected = {"network", "encoder"}
    if recipe.method == "mdd":
        expected |= {"bottleneck", "head", "adversary"}
    assert updated(recipe, task, method) == expected
    metrics = scores(method, task, recipe)
    assert list(metrics) == metric_names(recipe) and 0 <= next(iter(metrics.values())) <= 100
    with only_built():
        baseline = build(with_arm(recipe, "baseline"), 0, task)
    assert part_names(baseline) == expected - {"encoder"}


def test_every_set_has_a_recipe() -> None:
    assert {data_of(find_recipe(name)).name for name in NAMES} == {*TREES, "rotated_digits"}


@pytest.mark.parametrize("name", ["pacs_coral", "pacs_irm", "rotated_digits_mdd"])
def test_an_encoder_that_is_frozen_stays(name: str, trees: Path) -> None:
    recipe = with_arm(small(name, trees), "batchformer_frozen")
    task = load_task(recipe.data, CPU)
    method = build(recipe, 0, task)
    moved = updated(recipe, task, method)
    assert "network" in moved and "encoder" not in moved and "encoder" in part_names(method)


@pytest.mark.parametrize(
    "name", ["pacs_coral", "vlcs_swad", "office_home_swad", "terra_incognita_swad"]
)
def test_columns_of_the_paper_are_targets_of_a_run(name: str, trees: Path) -> None:
    recipe = small(name, trees, target="each")
    assert set(recipe.paper["baseline"]) == {"average", *targets_of(recipe)}
