"""Every recipe of contrastive learning trains: two updates, on noise; the digits end to end."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.sets.images import ImageSplit, class_counts
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.report.page.html import render
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.runs.compare import run
from batchformer.lab.runs.load_run import restore
from batchformer.lab.runs.run import build, load_task
from batchformer.lab.tasks.contrastive import ContrastiveTask
from batchformer.lab.tasks.long_tailed import LongTailedTask

CPU = torch.device("cpu")
LEARN = [name for name in RECIPES if find_recipe(name).task == "contrastive"]
ON_FEATURES = [name for name in RECIPES if find_recipe(name).method in ("linear_probe", "knn")]
CLASSES = 6
TREES = {"imagenet": "n{c:08d}/{i}.JPEG", "folder": "class {c}/{i}.png"}
#: Sides of the images that are cut to a size.
SIDE = 32


def _tree(root: Path, pattern: str) -> None:
    stream = np.random.default_rng(0)
    for part, sizes in (("train", (6, 4, 3, 2, 1, 1)), ("val", (1,) * CLASSES)):
        for c, size in enumerate(sizes):
            for i in range(size):
                path = root / part / pattern.format(c=c, i=i)
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = stream.integers(0, 256, (40 + i, 50 - c, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(path)


def _cifar(path: Path) -> None:
    sizes = class_counts(120, 100, 100)
    stream = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), sizes)
    np.savez(
        path,
        x_train=stream.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8),
        y_train=labels,
        rank_in_class=np.concatenate([np.arange(n) for n in sizes]),
        x_test=stream.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8),
        y_test=np.arange(100),
        classes=np.array([f"class {c}" for c in range(100)]),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("noise")
    for name, pattern in TREES.items():
        _tree(folder / name, pattern)
    (folder / "cifar100").mkdir()
    _cifar(folder / "cifar100" / "cifar100_lt.npz")
    yield folder
    load_task.cache_clear()


def tiny(name: str, root: Path) -> Recipe:
    """The recipe in batches of four; its network, loss, optimizer and sampler are its own."""
    recipe = find_recipe(name)
    data = recipe.data
    if data.name != "digits":
        data = recipe.data_with(root=str(root / data.name))
    if data.name in TREES:
        data = dataclasses.replace(data, size=SIDE)
    train = dataclasses.replace(recipe.train, batch_size=4, workers=0)
    # The last maps of a ResNet-50 are 1 x 1 here, and two rows are too few to normalise them by.
    parts = 1 if data.name in TREES else min(2, recipe.hyper.norm_parts)
    hyper = dataclasses.replace(recipe.hyper, norm_parts=parts)
    return dataclasses.replace(recipe, data=data, train=train, hyper=hyper)


def fewer(task: Any) -> Any:
    """The task with a few images of CIFAR's, since all of them go through the network when scored.

    The split keeps its hash.
    """
    if isinstance(task, ContrastiveTask):
        return dataclasses.replace(task, labelled=fewer(task.labelled))
    if not isinstance(task, LongTailedTask) or task.config.name == "digits":
        return task
    parts = {
        name: ImageSplit(part.x[::step], part.y[::step])
        for name, part, step in (("train", task.data.train, 80), ("test", task.data.test, 5))
    }
    return dataclasses.replace(task, data=dataclasses.replace(task.data, **parts))


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    changed = (key for key, value in before.items() if not torch.equal(value, after[key]))
    return {key.split(".")[0] for key in changed}


@pytest.mark.parametrize("arm", ["baseline", "batchformer"])
@pytest.mark.parametrize("name", LEARN)
def test_two_updates(name: str, arm: str, root: Path) -> None:
    recipe = with_arm(tiny(name, root), arm)
    task = fewer(load_task(recipe.data, CPU)).seeded(0)
    method = build(recipe, 0, task)
    feed = task.feed(recipe.train, seed=0)
    method.begin_training(2)
    optimizers, optimizer_step = method.optimizers(recipe.optim), OptimizerStep(recipe.train, CPU)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    method.train()
    for step in range(2):
        batch = feed.batch(step)
        assert batch["x"].shape == batch["view2"].shape and len(batch["x"]) == 4
        for group in (g for optimizer in optimizers.values() for g in optimizer.param_groups):
            assert group["base_lr"] == recipe.optim.lr, "BatchFormer at the rate of the network"
        losses = method.update(batch, optimizers, optimizer_step)
        method.after_update()
        assert math.isfinite(losses["loss"])
    close(feed)
    parts = moved(before, method.state_dict())
    assert {"network", "head", "key_network", "key_head"} <= parts
    assert ("encoder" in parts) == (arm == "batchformer")
    with torch.no_grad():
        metrics = task.evaluate(method.eval(), optimizer_step).metrics
    assert next(iter(metrics)) == "knn" and 0 <= metrics["knn"] <= 100
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", ON_FEATURES)
def test_probes_begin_with_the_features_of_another_run(name: str, root: Path) -> None:
    recipe = with_arm(tiny(name, root), "batchformer")
    learnt = with_arm(tiny(recipe.start, root), "batchformer")
    assert isinstance(learnt.data, ContrastConfig)
    whole, other = load_task(recipe.data, CPU), load_task(learnt.data, CPU)
    assert whole.facts()["split_sha256"] == other.facts()["split_sha256"]
    task = fewer(whole)
    torch.manual_seed(3)
    source = build(learnt, 3, other)
    state = source.state_dict()
    network = {k.removeprefix("network."): v for k, v in state.items() if k.startswith("network.")}
    method = build(recipe, 0, task, start=network)
    optimizers, optimizer_step = method.optimizers(recipe.optim), OptimizerStep(recipe.train, CPU)
    feed = task.feed(recipe.train, seed=0)
    method.begin_training(2)
    method.train()
    assert not any(part.training for part in method.network.modules())
    for step in range(2):
        losses = method.update(feed.batch(step), optimizers, optimizer_step)
        assert math.isfinite(losses["loss"])
    close(feed)
    after = method.state_dict()
    changed = {k for k, v in network.items() if not torch.equal(v, after[f"network.{k}"])}
    heads = {"fc.weight", "fc.bias"} if recipe.method == "linear_probe" else set()
    assert changed == heads and not any(key.startswith("encoder") for key in after)
    method.before_evaluation()
    with torch.no_grad():
        metrics = task.evaluate(method.eval(), optimizer_step).metrics
    assert next(iter(metrics)) == ("top1" if recipe.task == "recognition" else "all")
    assert all(math.isfinite(value) for value in metrics.values()) and "top5" in metrics


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learnt for 60 updates, probed for 8 epochs, compared with neighbours: three arms."""
    place = tmp_path_factory.mktemp("digits")
    short: dict[str, dict[str, int]] = {
        "digits_moco_v3": {"updates": 60, "eval_every": 30, "log_every": 20},
        "digits_moco_v3_probe": {"epochs": 8},
        "digits_moco_v3_knn": {},
    }
    for arm in ("baseline", "batchformer", "random_weights"):
        for name, changes in short.items():
            if name in LEARN and arm == "random_weights":
                continue  # there is nothing to learn for it
            recipe = find_recipe(name)
            recipe = dataclasses.replace(
                recipe, train=dataclasses.replace(recipe.train, **changes, figures=False)
            )
            run(recipe, arm, 0, root=place, device=CPU, quiet=True)
    return place


def metrics_of(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return found


def test_features_of_each_arm_are_its_own(digits: Path) -> None:
    probes = {
        folder.parent.name: metrics_of(folder)
        for folder in (digits / "digits_moco_v3_probe").glob("*/seed0")
    }
    assert probes.keys() == {"baseline", "batchformer", "random_weights"}
    assert len({scores["ece"] for scores in probes.values()}) == 3
    for scores in probes.values():
        assert 10 < scores["all"] <= 100 and scores["all"] <= scores["top5"] <= 100
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
        method, task, _ = restore(folder, CPU)
        with torch.no_grad():
            scores = task.evaluate(method, OptimizerStep(TrainConfig(), CPU)).metrics
        assert scores == pytest.approx(metrics_of(folder), abs=1e-4)


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


def test_a_probe_needs_its_source(tmp_path: Path) -> None:
    recipe = find_recipe("digits_moco_v3_probe")
    with pytest.raises(FileNotFoundError, match="batchformer train digits_moco_v3 --arm baseline"):
        run(recipe, "baseline", 0, root=tmp_path, device=CPU, quiet=True)
