"""Every recipe of several domains trains: two updates at 32 pixels, on noise laid out as its data.

Networks are the recipes' own, with random weights; so are losses, optimizers and samplers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import DomainConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.compare import run
from batchformer.lab.runs.run import build, load_task
from batchformer.lab.runs.sub_runs import by_target
from batchformer.lab.tasks.domains import read_domains
from batchformer.lab.tasks.load import Task

CPU = torch.device("cpu")
NAMES = [name for name in RECIPES if find_recipe(name).task == "domains"]
TERRA = [
    "bird",
    "bobcat",
    "cat",
    "coyote",
    "dog",
    "empty",
    "opossum",
    "rabbit",
    "raccoon",
    "squirrel",
]
#: As they are published: folder, folders of the domains, classes, images of a class in a domain.
TREES = {
    "pacs": (
        "PACS",
        ("art_painting", "cartoon", "photo", "sketch"),
        ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"],
        2,
    ),
    "vlcs": (
        "VLCS",
        ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        ["bird", "car", "chair", "dog", "person"],
        2,
    ),
    "office_home": (
        "OfficeHomeDataset_10072016",
        ("Art", "Clipart", "Product", "Real World"),
        [f"Class_{number:02}" for number in range(65)],
        1,
    ),
    "terra_incognita": (
        "terra_incognita",
        ("location_100", "location_38", "location_43", "location_46"),
        TERRA,
        1,
    ),
    "visda": ("visda-2017", ("train", "validation"), [f"class{n:02}" for n in range(12)], 1),
    "tree": ("mine", ("by day", "by night", "in rain"), ["ant", "bee"], 4),
}
#: The first domain of each set, by the name that scores have.
FIRST = {
    "pacs": "art_painting",
    "vlcs": "caltech101",
    "office_home": "art",
    "terra_incognita": "l100",
    "tree": "by day",
    "rotated_digits": "r0",
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place, stream = tmp_path_factory.mktemp("trees"), np.random.default_rng(0)
    for folder, domains, classes, each in TREES.values():
        for number, domain in enumerate(domains):
            for name in classes:
                (place / folder / domain / name).mkdir(parents=True)
                for image in range(each):
                    pixels = stream.integers(0, 256, (36, 36, 3), dtype=np.uint8)
                    ending = "png" if number else "jpg"
                    path = place / folder / domain / name / f"pic_{image:03}.{ending}"
                    Image.fromarray(pixels).save(path)
    yield place
    load_task.cache_clear()
    read_domains.cache_clear()


def data_of(recipe: Recipe) -> DomainConfig:
    assert isinstance(recipe.data, DomainConfig)
    return recipe.data


def tiny(name: str, trees: Path, target: str | None = None) -> Recipe:
    """The recipe at 32 pixels on a small tree, with six images in a batch."""
    recipe = find_recipe(name)
    data = data_of(recipe)
    if data.of_files:
        folder = TREES[data.name][0]
        # A known set is also found from the folder above it.
        root = trees / folder if data.name == "tree" else trees
        data = dataclasses.replace(data, root=str(root), size=32)
    if data.target == "each":
        data = dataclasses.replace(data, target=target or FIRST[data.name])
    size = 10 if data.name == "rotated_digits" else 6
    train = dataclasses.replace(
        recipe.train,
        batch_size=size,
        updates=2,
        epochs=0,
        eval_every=0,
        workers=0,
        figures=False,
    )
    # Without its weights a network with frozen normalisation diverges at the recipe's rate.
    optim = dataclasses.replace(recipe.optim, lr=recipe.optim.lr / 100)
    return dataclasses.replace(recipe, data=data, train=train, optim=optim, weights="")


def metric_names(recipe: Recipe) -> list[str]:
    data = data_of(recipe)
    return [data.target, "mean_class"] if data.adapt else [data.target, "val", "val_loss"]


def scores(method: Method, task: Task, optimizer_step: OptimizerStep) -> dict[str, float]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = task.evaluate(method.eval(), optimizer_step)
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert 0 <= next(iter(found.metrics.values())) <= 100
    return found.metrics


def moved_parts(before: Mapping[str, Tensor], method: Method) -> set[str]:
    """Parts of the method with a parameter that is not what it was."""
    moved = [k for k, v in method.named_parameters() if not torch.equal(before[k], v)]
    return {key.removeprefix("inner.").split(".")[0] for key in moved}


def parts_of(method: Method) -> set[str]:
    """Parts of the method that have parameters."""
    return {key.removeprefix("inner.").split(".")[0] for key, _ in method.named_parameters()}


def two_updates(recipe: Recipe, task: Task, method: Method) -> dict[str, Tensor]:
    """Train, with finite losses; gives the parameters from before."""
    optimizers, optimizer_step = method.optimizers(recipe.optim), OptimizerStep(recipe.train, CPU)
    before = {key: value.detach().clone() for key, value in method.named_parameters()}
    feed = task.feed(recipe.train, seed=0)
    method.train()
    torch.manual_seed(0)  # of dropout: not what tests before have left
    try:
        for step in range(2):
            method.begin_epoch(step)
            batch = feed.batch(step)
            assert len(batch["x"]) == recipe.train.batch_size
            assert ("x_target" in batch) == data_of(recipe).adapt
            losses = method.update(batch, optimizers, optimizer_step)
            method.after_update()
            assert all(math.isfinite(value) for value in losses.values()), losses
            assert "loss" in losses and ("penalty" in losses) == (
                recipe.method in ("coral", "irm", "vrex", "mdd")
            )
        method.after_evaluation(scores(method, task, optimizer_step))
        for name, other in method.conclude(feed).items():
            assert name == "swad" and recipe.hyper.swad
            assert list(scores(other, task, optimizer_step)) == metric_names(recipe)
            assert parts_of(other) == parts_of(method)
    finally:
        close(feed)
    return before


@pytest.mark.parametrize("name", NAMES)
def test_two_updates(
    name: str, trees: Path, only_built: Callable[[], AbstractContextManager[None]]
) -> None:
    recipe = tiny(name, trees)
    task = load_task(recipe.data, CPU)
    method = build(with_arm(recipe, "batchformer"), 0, task)
    before = two_updates(recipe, task, method)
    expected = {"network", "encoder"}
    if recipe.method == "mdd":
        expected |= {"bottleneck", "head", "adversary"}
    assert moved_parts(before, method) == expected
    assert list(scores(method, task, OptimizerStep(recipe.train, CPU))) == metric_names(recipe)
    assert hasattr(method, "inner") == recipe.hyper.swad

    del method, before
    with only_built():
        baseline = build(with_arm(recipe, "baseline"), 0, task)
    assert parts_of(baseline) == expected - {"encoder"}


def test_every_set_has_a_recipe() -> None:
    assert {data_of(find_recipe(name)).name for name in NAMES} == {*TREES, "rotated_digits"}


@pytest.mark.parametrize("name", ["pacs_coral", "pacs_irm", "rotated_digits_mdd"])
def test_an_encoder_that_is_frozen_stays(name: str, trees: Path) -> None:
    recipe = with_arm(tiny(name, trees), "batchformer_frozen")
    task = load_task(recipe.data, CPU)
    method = build(recipe, 0, task)
    moved = moved_parts(two_updates(recipe, task, method), method)
    assert "network" in moved and "encoder" not in moved and "encoder" in parts_of(method)


def test_the_released_grouping_of_irm(trees: Path) -> None:
    recipe = with_arm(tiny("pacs_irm", trees), "batchformer_official_grouping")
    task = load_task(recipe.data, CPU)
    method = build(recipe, 0, task)
    assert moved_parts(two_updates(recipe, task, method), method) == {"network", "encoder"}


def test_every_target_of_a_recipe_on_files(trees: Path, tmp_path: Path) -> None:
    recipe = tiny("pacs_coral", trees, target="each")
    domains = TREES["pacs"][1]
    assert tuple(by_target(recipe)) == domains
    folder = run(recipe, "batchformer", 0, root=tmp_path, device=CPU, quiet=True)
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    assert list(metrics) == ["average", *domains, "val"]
    assert set(find_recipe("pacs_coral").paper["baseline"]) <= set(metrics)
    assert metrics["average"] == pytest.approx(sum(metrics[d] for d in domains) / 4)
    with np.load(folder / "figures.npz") as figures:
        assert figures["correct"].shape == (4 * 7 * 2,)
        assert figures["confusion"].sum() == 4 * 7 * 2 and len(figures["classes"]) == 7
