"""Every long-tailed recipe trains: two updates of both arms, on noise of CIFAR's classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.arms import ARMS, with_arm
from batchformer.lab.config.methods import find_method, loss_change
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optim import parameters_of
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, load_task
from batchformer.plug.check import check
from helpers.data_files import save_tail
from helpers.lab_runs import metrics_of, records_of, scores_of, train_one
from helpers.smoke import CPU, tiny

#: Another ratio changes numbers alone; the others are trained as first stages and teachers.
#: The small DeiT has the same two losses as ResNet-32, and CIFAR-100 without a tail is elsewhere.
OTHERS = r"moco|_(r\d+|6experts|oltr_plain|many|medium|few|deit|deit_cross_entropy)$"
NAMES = [name for name in RECIPES if name.startswith("cifar") and not re.search(OTHERS, name)]
#: These measure all training images before they train, and so are given few.
MEASURED = ("oltr", "lfme")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        save_tail(folder / f"{name}_lt.npz", classes, largest=200, ratios=(100, 200))
    (folder / "few").mkdir()
    save_tail(folder / "few/cifar10_lt.npz", 10, largest=100)
    return folder


def small(name: str, root: Path) -> Recipe:
    """The recipe with its data in a folder of noise and two updates of eight samples."""
    recipe: Any = find_recipe(name)
    data = {"root": str(root), "meta_batch": min(recipe.data.meta_batch, 16)}
    if any(word in name for word in MEASURED):
        data |= {"name": "cifar10", "root": str(root / "few")}
    length = {"batch_size": 8, "updates": 2, "epochs": 0, "eval_every": 0, "checkpoint_every": 0}
    return tiny(recipe, data, {**length, "precision": "fp32"})  # bf16 is slow on a CPU


def trained(name: str, arm: str, root: Path) -> Path:
    """The folder of a run, trained now if need be, after the runs that it starts from."""
    recipe = small(name, root)
    for _, source in recipe.sources():
        before, _, other = source.partition("/")
        trained(before, other or arm, root)
    return train_one(recipe, arm, 0, root=root / "runs")


@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize("name", NAMES)
def test_two_updates_of_both_arms(name: str, root: Path) -> None:
    for arm in ("baseline", "batchformer"):
        folder = trained(name, arm, root)
        metrics = metrics_of(folder)
        assert 0 <= metrics["all"] <= 100
        assert all(np.isfinite(r["loss"]) for r in records_of(folder) if r["kind"] == "train")
    assert scores_of(folder) == metrics, "a restored run answers as the trained one"


@pytest.mark.parametrize("name", ["cross_entropy", "ride", "paco", "crt", "balanced_softmax"])
@pytest.mark.parametrize("streams", ["both", "mixed_only"])
def test_its_check_passes(name: str, streams: str, root: Path) -> None:
    """An untrained network without batch statistics has features in the thousands."""
    recipe = small(f"cifar100_lt_{name}", root)
    if streams == "mixed_only":
        recipe = recipe.changed(module={"streams": "mixed_only"})
    task = load_task(recipe.data, CPU)
    images = task.feed(recipe.train, 0).batch(0)["x"]
    method = build(with_arm(recipe, "batchformer"), 0, task)
    found = check(method, images, mixed_only=streams == "mixed_only")
    assert found.passed, str(found)


@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize("name", ["ldam", "ride", "paco", "bbn", "crt", "lws", "tau_norm", "balms"])
def test_arms_of_a_method_begin_alike_and_all_step(name: str, root: Path) -> None:
    recipe = small(f"cifar100_lt_{name}", root)
    task = load_task(recipe.data, CPU)
    batch = task.feed(recipe.train, 0).batch(0)
    baseline = build(with_arm(recipe, "baseline"), 0, task).state_dict()
    refused = {"batchformer_official_loss"} if name in ("ride", "paco") else set()
    refused |= {"batchformer_identity"}  # it needs a place inside the network
    changes = loss_change(recipe.method) is not None
    refused |= {"baseline_batch2x", "baseline_updates2x"} if changes else set()
    refused |= {arm for arm in ARMS if not ARMS[arm].fits(find_method(recipe.method))}
    # Random weights are for probes: these methods need a trained network, or are the baseline.
    for arm in set(ARMS) - refused - {"random_weights"}:
        torch.manual_seed(hash(arm) % 1000)  # whatever the global generator holds
        method = build(with_arm(recipe, arm), 0, task)
        state = method.state_dict()
        assert all(torch.equal(state[key], value) for key, value in baseline.items()), arm
        extra = {key.split(".")[0] for key in set(state) - set(baseline)}
        assert extra == (set() if arm.startswith("baseline") else {"encoder"}), arm
        assert method.train().step(batch)["loss"].isfinite(), arm
        trained = [p for p in method.parameters() if p.requires_grad]
        optimizers = method.optimizers(OptimConfig()).values()
        held = [p for optimizer in optimizers for p in parameters_of(optimizer)]
        assert sorted(map(id, held)) == sorted(map(id, trained)), arm
