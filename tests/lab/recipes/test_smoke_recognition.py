"""Every recipe of plain recognition trains: two updates at 32 pixels, on noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.config.arms import with_arm
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, load_task
from helpers.data_files import save_images, save_tail
from helpers.networks import only_built
from helpers.smoke import CPU, scores, tiny, two_updates

KNOWN = {name: find_recipe(name) for name in RECIPES}
#: Probes of features that others learnt are of this task too. DeiTs differ in their size alone.
NAMES = [
    name
    for name, recipe in KNOWN.items()
    if recipe.task == "recognition"
    and recipe.method == "cross_entropy"
    and not name.startswith(("imagenet_deit_small", "imagenet_deit_base"))
]
CLASSES = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("imagenet")
    for part, count in (("train", 3), ("val", 1)):
        save_images(folder / part, "n{c:08d}/{i}.JPEG", [count] * CLASSES)
    save_tail(folder / "cifar100_lt.npz", 100, largest=2, ratios=(1,))
    yield folder
    load_task.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_two_updates(name: str, root: Path) -> None:
    recipe: Any = find_recipe(name)
    on_files, repeated = recipe.data.of_files, recipe.data.sampler == "repeated"
    digits = recipe.data.name == "digits"
    data = {} if digits else {"root": str(root), **({"size": 32} if on_files else {})}
    recipe = tiny(recipe, data, {"batch_size": 4})
    task = load_task(recipe.data, CPU)
    method = build(with_arm(recipe, "batchformer"), 0, task)
    with only_built():
        baseline = build(with_arm(recipe, "baseline"), 0, task)

    def look(step: int, batch: dict[str, Any], losses: object) -> None:
        side, channels = (8, 1) if digits else (32, 3)
        assert batch["x"].shape == (4, channels, side, side)
        if repeated:
            a, b, c, d = batch["index"].tolist()
            assert (a == b == c != d) if step == 0 else (a == b and c == d)

    before = two_updates(recipe, task, method, look)
    still = [k for k, v in method.named_parameters() if torch.equal(v, before[k])]
    assert len(still) < len(before) / 4, still
    added = before.keys() - dict(baseline.named_parameters()).keys()
    assert added and all(key.startswith("encoder") or ".batchformer." in key for key in added)
    if on_files:
        assert list(scores(method, task, recipe)) == ["top1", "top5", "mean_class", "ece"]
