"""Every recipe of contrastive learning trains: two updates, on noise; the digits end to end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.report.page.html import render
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.tasks.contrastive import ContrastiveTask
from batchformer.lab.tasks.long_tailed import LongTailedTask
from helpers.data_files import save_images, save_tail
from helpers.lab_runs import metrics_of, scores_of, train_one
from helpers.networks import only_built
from helpers.smoke import CPU, moved_parts, part_names, scores, tiny, two_updates

pytestmark = pytest.mark.usefixtures("one_block")
LEARN = [name for name in RECIPES if find_recipe(name).task == "contrastive"]
ON_FEATURES = [name for name in RECIPES if find_recipe(name).method in ("linear_probe", "knn")]
CLASSES = 6
TREES = {"imagenet": "n{c:08d}/{i}.JPEG", "folder": "class {c}/{i}.png"}
#: Sides of the images that are cut to a size.
SIDE = 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("noise")
    for name, pattern in TREES.items():
        save_images(folder / name / "train", pattern, (6, 4, 3, 2, 1, 1))
        save_images(folder / name / "val", pattern, [1] * CLASSES)
    (folder / "cifar100").mkdir()
    save_tail(folder / "cifar100" / "cifar100_lt.npz", classes=100, largest=120)
    yield folder
    load_task.cache_clear()


def small(name: str, root: Path) -> Recipe:
    """The recipe in batches of four; its loss, optimizer and sampler are its own."""
    recipe = find_recipe(name)
    place = recipe.data.name
    data: dict[str, Any] = {} if place == "digits" else {"root": str(root / place)}
    if place in TREES:
        data["size"] = SIDE
    # The last maps of a ResNet are 1 x 1 here, and two rows are too few to normalise them by.
    parts = 1 if place in TREES else min(2, recipe.hyper.norm_parts)
    hidden = min(64, recipe.hyper.projection_hidden)
    return tiny(
        recipe.changed(hyper={"norm_parts": parts, "projection_hidden": hidden}),
        data,
        {"batch_size": 4},
    )


def fewer(task: Any) -> Any:
    """The task with a few images of CIFAR's, since all of them go through the network when scored.

    The split keeps its hash.
    """
    if isinstance(task, ContrastiveTask):
        return dataclasses.replace(task, labelled=fewer(task.labelled))
    if not isinstance(task, LongTailedTask) or task.config.name == "digits":
        return task
    parts = {
        name: ImageSplit(part.x[::step], part.labels[::step])
        for name, part, step in (("train", task.data.train, 80), ("test", task.data.test, 2))
    }
    return dataclasses.replace(task, data=dataclasses.replace(task.data, **parts))


@pytest.mark.parametrize("name", LEARN)
def test_two_updates(name: str, root: Path) -> None:
    recipe = small(name, root)
    task = fewer(load_task(recipe.data, CPU)).seeded(0)
    method = build(with_arm(recipe, "batchformer"), 0, task)
    with only_built():
        baseline = build(with_arm(recipe, "baseline"), 0, task)
    for optimizer in method.optimizers(recipe.optim).values():
        for group in optimizer.param_groups:
            assert group["base_lr"] == recipe.optim.lr, "BatchFormer at the rate of the network"

    def look(step: int, batch: dict[str, Any], losses: object) -> None:
        assert batch["x"].shape == batch["view2"].shape and len(batch["x"]) == 4

    moved = moved_parts(two_updates(recipe, task, method, look), method)
    assert {"network", "head", "key_network", "key_head", "encoder"} <= moved
    assert "encoder" not in part_names(baseline)
    metrics = scores(method, task, recipe)
    assert next(iter(metrics)) == "knn" and 0 <= metrics["knn"] <= 100


@pytest.mark.parametrize("name", ON_FEATURES)
def test_probes_begin_with_the_features_of_another_run(name: str, root: Path) -> None:
    recipe = with_arm(small(name, root), "batchformer")
    learnt = with_arm(small(recipe.start, root), "batchformer")
    assert isinstance(learnt.data, ContrastConfig)
    whole, other = load_task(recipe.data, CPU), load_task(learnt.data, CPU)
    assert whole.facts()["split_sha256"] == other.facts()["split_sha256"]
    task = fewer(whole)
    torch.manual_seed(3)
    state = build(learnt, 3, other).state_dict()
    network = {k.removeprefix("network."): v for k, v in state.items() if k.startswith("network.")}
    method: Any = build(recipe, 0, task, start=network)

    def look(step: int, batch: object, losses: object) -> None:
        assert not any(part.training for part in method.network.modules())

    two_updates(recipe, task, method, look)
    after = method.state_dict()
    changed = {k for k, v in network.items() if not torch.equal(v, after[f"network.{k}"])}
    heads = {"fc.weight", "fc.bias"} if recipe.method == "linear_probe" else set()
    assert changed == heads and not any(key.startswith("encoder") for key in after)
    metrics = scores(method, task, recipe)
    assert next(iter(metrics)) == ("top1" if recipe.task == "recognition" else "all")
    assert "top5" in metrics


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learnt for 16 updates, probed for 2 epochs, compared with neighbours: three arms."""
    place = tmp_path_factory.mktemp("digits")
    short: dict[str, dict[str, int]] = {
        "digits_moco_v3": {"updates": 16, "eval_every": 8, "log_every": 8},
        "digits_moco_v3_probe": {"epochs": 2},
        "digits_moco_v3_knn": {},
    }
    for arm in ("baseline", "batchformer", "random_weights"):
        for name, changes in short.items():
            if name in LEARN and arm == "random_weights":
                continue  # there is nothing to learn for it
            recipe = find_recipe(name)
            recipe = recipe.changed(train={**changes, "figures": False})
            train_one(recipe, arm, 0, root=place)
    return place


def test_features_of_each_arm_are_its_own(digits: Path) -> None:
    probes = {
        folder.parent.name: metrics_of(folder)
        for folder in (digits / "digits_moco_v3_probe").glob("*/seed0")
    }
    assert probes.keys() == {"baseline", "batchformer", "random_weights"}
    assert len({found["ece"] for found in probes.values()}) == 3
    for found in probes.values():
        assert 10 < found["all"] <= 100 and found["all"] <= found["top5"] <= 100
    for arm in ("baseline", "batchformer"):
        learnt = metrics_of(digits / "digits_moco_v3" / arm / "seed0")
        neighbours = metrics_of(digits / "digits_moco_v3_knn" / arm / "seed0")
        assert learnt["knn"] == neighbours["all"], "the same features, bank and votes"
        assert learnt["knn_few"] == neighbours["few"]
        for name in ("alignment", "uniformity", "feature_std"):
            assert learnt[name] == pytest.approx(neighbours[name], rel=1e-5)
    untrained = metrics_of(digits / "digits_moco_v3_knn" / "random_weights" / "seed0")
    assert untrained["uniformity"] > learnt["uniformity"]


def test_runs_are_restored(digits: Path) -> None:
    for name in ("digits_moco_v3", "digits_moco_v3_probe", "digits_moco_v3_knn"):
        folder = digits / name / "batchformer" / "seed0"
        assert scores_of(folder) == pytest.approx(metrics_of(folder), abs=1e-4)


def test_the_page_has_all_of_it(digits: Path) -> None:
    page = render(find_runs(digits))
    for words in (
        "Convergence of the probe",
        "k-NN, few",
        "Uniformity",
        "neither more nor less is better: Alignment, Uniformity, Feature SD",
        "In the paper BatchFormer reaches it at epoch 38 of 90",
        "random_weights",
    ):
        assert words in page, words
    assert page.count("Convergence of the probe") == 1
