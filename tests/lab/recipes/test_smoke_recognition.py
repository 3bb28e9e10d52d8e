"""Every recipe of plain recognition trains: two updates at 32 pixels, on noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.run import build, load_task

CPU = torch.device("cpu")
KNOWN = {name: find_recipe(name) for name in RECIPES}
#: Probes of features that others learnt are of this task too.
NAMES = [
    name
    for name, recipe in KNOWN.items()
    if recipe.task == "recognition" and recipe.method == "cross_entropy"
]
CLASSES = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, stream = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    for part, count in (("train", 3), ("val", 1)):
        for c in range(CLASSES):
            place = folder / part / f"n{c:08d}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = stream.integers(0, 256, (40 + i, 50 - c, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.JPEG")
    yield folder
    load_task.cache_clear()


@pytest.mark.parametrize("arm", ["baseline", "batchformer"])
@pytest.mark.parametrize("name", NAMES)
def test_two_updates(name: str, arm: str, root: Path) -> None:
    recipe = find_recipe(name)
    assert isinstance(recipe.data, LongTailConfig)
    on_files, repeated = recipe.data.of_files, recipe.data.sampler == "repeated"
    data = recipe.data_with(root=str(root), size=32) if on_files else recipe.data
    train = dataclasses.replace(recipe.train, batch_size=4, workers=0)
    recipe = with_arm(dataclasses.replace(recipe, data=data, train=train), arm)
    task = load_task(recipe.data, CPU)
    method = build(recipe, 0, task)
    optimizers, optimizer_step = method.optimizers(recipe.optim), OptimizerStep(recipe.train, CPU)
    feed = task.feed(recipe.train, seed=0)
    method.train()
    before = {key: value.detach().clone() for key, value in method.named_parameters()}
    for step in range(2):
        batch = feed.batch(step)
        side, channels = (32, 3) if on_files else (8, 1)
        assert batch["x"].shape == (4, channels, side, side)
        if repeated:
            a, b, c, d = batch["index"].tolist()
            assert (a == b == c != d) if step == 0 else (a == b and c == d)
        losses = method.update(batch, optimizers, optimizer_step)
        method.after_update()
        assert math.isfinite(losses["loss"])
    close(feed)
    still = [k for k, v in method.named_parameters() if torch.equal(v, before[k])]
    assert len(still) < len(before) / 4, still
    assert any(key.startswith("encoder") for key in before) == (arm == "batchformer")
    if on_files:
        evaluation = task.evaluate(method.eval(), optimizer_step)
        assert list(evaluation.metrics) == ["top1", "top5", "mean_class", "ece"]
        assert evaluation.figures["correct"].shape == (CLASSES,)
