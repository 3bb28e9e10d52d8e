"""Every long-tailed recipe on image files trains: two updates at 32 pixels, on noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.sets import image_layouts
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, build_network, load_task
from helpers.data_files import save_images
from helpers.smoke import CPU, moved_parts, scores, tiny, two_updates

DATA = {name: find_recipe(name).data for name in RECIPES}
SIZES = (9, 4, 2)
TREES = {
    "imagenet_lt": ("train/n{c:08d}/{i}.JPEG", "val/n{c:08d}/{i}.JPEG"),
    "inaturalist18": ("train_val2018/Aves/{c}/a{i}.jpg", "train_val2018/Aves/{c}/b{i}.jpg"),
    "places_lt": ("train/scene{c}/{i}.jpg", "val/scene{c}/{i}.jpg"),
    "folder": ("train/class {c}/{i}.png", "val/class {c}/{i}.png"),
}
PROBES = ("linear_probe", "knn")  # without BatchFormer: test_smoke_contrastive.py
#: Networks of these are the larger ones of their kind: test_networks.py.
LARGER = ("ride_resnet50", "ride_resnet50_6experts", "ride_resnet10_6experts")
LARGER += ("ride_resnet50_two_stage", "ride_resnet50_distilled")
#: These are cross-entropy on some classes, which are too few here.
LARGER += ("lfme_many", "lfme_medium", "lfme_few")
NAMES = [
    n
    for n, data in DATA.items()
    if isinstance(data, LongTailConfig)
    and data.name in TREES
    and find_recipe(n).method not in PROBES
    and n not in [f"imagenet_lt_{name}" for name in LARGER]
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("trees")
    with pytest.MonkeyPatch.context() as patch:
        for name, (train, test) in TREES.items():
            lists = {"train": save_images(folder / name, train, SIZES)}
            lists["test"] = lists["val"] = save_images(folder / name, test, (1, 1, 1))
            if name in image_layouts.ANNOTATED:
                known = image_layouts.ANNOTATED[name]
                for part, text in lists.items():
                    (folder / name / getattr(known, part)).write_text(text)
                small = dataclasses.replace(
                    known, classes=3, images=15, most=9, fewest=2, tested=3, validated=3
                )
                patch.setitem(image_layouts.ANNOTATED, name, small)
        yield folder
        load_task.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_two_updates(name: str, root: Path) -> None:
    """At 32 pixels with batches of four; loss and optimizer are the recipe's own."""
    recipe: Any = find_recipe(name)
    place, meta = str(root / recipe.data.name), min(recipe.data.meta_batch, 3)
    # Four parts would have one row each, which has no statistics.
    parts = min(2, recipe.hyper.norm_parts)
    small = {"norm_parts": parts, "attention_side": 1, "expert_cuts": (5, 3)}
    data = {"root": place, "size": 32, "meta_batch": meta}
    recipe = recipe.changed(hyper=small)
    recipe = tiny(recipe, data, {"batch_size": 4}, recipe.weights)
    untrained = recipe.method == "tau_norm"
    recipe = with_arm(recipe, "baseline" if untrained else "batchformer")
    task = load_task(recipe.data, CPU)
    start = None
    if recipe.start:
        torch.manual_seed(0)
        start = build_network(recipe, task.num_classes).state_dict()
    method = build(recipe, 0, task, start)
    optimizer_step = OptimizerStep(recipe.train, CPU)
    if recipe.train.precision == "fp16":  # the usual first scale overflows, and skips the update
        optimizer_step.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def look(step: int, batch: dict[str, Any], losses: object) -> None:
        assert batch["x"].shape == (4, 3, 32, 32)

    def end(feed: Any) -> None:
        assert feed.per_epoch == (3 if recipe.train.drop_last else 4)

    before = two_updates(recipe, task, method, look, end, optimizer_step)
    assert untrained or {"encoder", "network"} <= moved_parts(before, method)
    assert 0 <= scores(method, task, recipe)["all"] <= 100
