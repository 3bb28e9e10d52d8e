"""Every long-tailed recipe on image files trains: two updates at 32 pixels, on noise."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.data.sets import image_layouts
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build_network
from batchformer.lab.runs.run import build, load_task

CPU = torch.device("cpu")
DATA = {name: find_recipe(name).data for name in RECIPES}
SIZES = (9, 4, 2)
TREES = {
    "imagenet_lt": ("train/n{c:08d}/{i}.JPEG", "val/n{c:08d}/{i}.JPEG"),
    "inaturalist18": ("train_val2018/Aves/{c}/a{i}.jpg", "train_val2018/Aves/{c}/b{i}.jpg"),
    "places_lt": ("train/scene{c}/{i}.jpg", "val/scene{c}/{i}.jpg"),
    "folder": ("train/class {c}/{i}.png", "val/class {c}/{i}.png"),
}
PROBES = ("linear_probe", "knn")  # without BatchFormer: tests/recipes/test_smoke_contrastive.py
NAMES = [
    n
    for n, data in DATA.items()
    if isinstance(data, LongTailConfig)
    and data.name in TREES
    and find_recipe(n).method not in PROBES
]


def _images(root: Path, pattern: str, sizes: tuple[int, ...]) -> str:
    """Noise of various shapes; gives the list of them."""
    stream, lines = np.random.default_rng(0), []
    for c, size in enumerate(sizes):
        for i in range(size):
            path = pattern.format(c=c, i=i)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            pixels = stream.integers(0, 256, (40 + i, 50 - c, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / path)
            lines.append(f"{path} {c}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("trees")
    with pytest.MonkeyPatch.context() as patch:
        for name, (train, test) in TREES.items():
            lists = {"train": _images(folder / name, train, SIZES)}
            lists["test"] = lists["val"] = _images(folder / name, test, (1, 1, 1))
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


def tiny(name: str, root: Path) -> Recipe:
    """The recipe at 32 pixels with batches of four; its network, loss and optimizer are its own."""
    recipe = find_recipe(name)
    assert isinstance(recipe.data, LongTailConfig)
    place = root / recipe.data.name
    data = dataclasses.replace(
        recipe.data, root=str(place), size=32, meta_batch=min(recipe.data.meta_batch, 3)
    )
    train = dataclasses.replace(recipe.train, batch_size=4, workers=0)
    # Four parts would have one row each, which has no statistics.
    hyper = dataclasses.replace(recipe.hyper, norm_parts=min(2, recipe.hyper.norm_parts))
    return dataclasses.replace(recipe, data=data, train=train, hyper=hyper)


@pytest.mark.parametrize("name", NAMES)
def test_two_updates(name: str, root: Path) -> None:
    recipe = tiny(name, root)
    untrained = recipe.method == "tau_norm"
    recipe = with_arm(recipe, "baseline" if untrained else "batchformer")
    task = load_task(recipe.data, CPU)
    start = None
    if recipe.start:
        torch.manual_seed(0)
        start = build_network(recipe, task.num_classes).state_dict()
    method = build(recipe, 0, task, start)
    optimizers, optimizer_step = method.optimizers(recipe.optim), OptimizerStep(recipe.train, CPU)
    if recipe.train.precision == "fp16":  # the usual first scale overflows, and skips the update
        optimizer_step.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    feed = task.feed(recipe.train, seed=0)
    assert feed.per_epoch == (3 if recipe.train.drop_last else 4)
    method.train()
    for step in range(2):
        batch = feed.batch(step)
        assert batch["x"].shape == (4, 3, 32, 32)
        losses = method.update(batch, optimizers, optimizer_step)
        method.after_update()
        assert math.isfinite(losses["loss"]), losses
    close(feed)
    after = method.state_dict()
    moved = {
        key.split(".")[0] for key, value in before.items() if not torch.equal(value, after[key])
    }
    assert untrained or {"encoder", "network"} <= moved
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluation = task.evaluate(method.eval(), optimizer_step)
    assert 0 <= evaluation.metrics["all"] <= 100 and evaluation.figures["correct"].shape == (3,)
