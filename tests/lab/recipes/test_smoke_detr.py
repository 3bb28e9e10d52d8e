"""Recipes of DETR train: two updates of small images with coloured rectangles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.models import detr
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.runs.compare import run
from helpers.lab_runs import metrics_of, records_of
from helpers.smoke import CPU, scores, two_updates

pytest.importorskip("transformers")
#: my_boxes is Deformable DETR, too.
NAMES = [
    name
    for name in RECIPES
    if find_recipe(name).method == "detr" and not name.endswith("deformable_detr")
]
BOX = (4, 8, 30, 40)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16}
    monkeypatch.setattr(detr, "SIZES", {**sizes, "decoder_ffn_dim": 16})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same images in the folders of VOC and of COCO."""
    place, stream = tmp_path_factory.mktemp("boxes"), np.random.default_rng(0)
    left, top, right, bottom = BOX
    for voc, coco, count in (("trainval", "train", 4), ("test", "val", 2)):
        folders = [place / "VOC2007" / name for name in ("JPEGImages", "Annotations")]
        folders += [place / "VOC2007/ImageSets/Main", place / "annotations", place / f"{coco}2017"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        sides = f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax>"
        box = f"<bndbox>{sides}<ymax>{bottom}</ymax></bndbox>"
        annotation = f"<annotation><object><name>dog</name>{box}</object></annotation>"
        for number in range(count):
            pixels = stream.integers(90, 140, (64, 72, 3), dtype=np.uint8)
            pixels[top:bottom, left:right] = (220, 40, 40)
            for file in (folders[0] / f"{voc}{number}.jpg", folders[4] / f"{number}.jpg"):
                Image.fromarray(pixels).save(file)
            (folders[1] / f"{voc}{number}.xml").write_text(annotation)
        (folders[2] / f"{voc}.txt").write_text("\n".join(f"{voc}{n}" for n in range(count)))
        sizes = [left, top, right - left, bottom - top]
        content = {
            "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(count)],
            "annotations": [{"image_id": n, "category_id": 1, "bbox": sizes} for n in range(count)],
            "categories": [{"id": 1, "name": "dog"}],
        }
        (folders[3] / f"instances_{coco}2017.json").write_text(json.dumps(content))
    yield place
    load_task.cache_clear()


def of_two(name: str, root: Path) -> Recipe:
    """Two updates of two images, in parts where the recipe has some, on a smaller network."""
    recipe: Any = find_recipe(name).changed(model="resnet18", weights="", hyper={"queries": 5})
    lists = {"trained_on": ("2007/trainval",)} if recipe.data.name == "voc" else {}
    sides = {"shorter": (48, 64), "shorter_at_test": 64, "longest": 96}
    length = {"batch_size": 2, "accumulate": min(2, recipe.train.accumulate), "updates": 2}
    more = {"epochs": 0, "eval_every": 0, "workers": 0, "figures": False, "precision": "fp32"}
    return recipe.changed(data={"root": str(root), **sides, **lists}, train={**length, **more})


@pytest.mark.parametrize("name", NAMES)
def test_two_updates(name: str, root: Path) -> None:
    recipe = with_arm(of_two(name, root), "baseline")
    task = load_task(recipe.data, CPU)
    method = build(recipe, 0, task)
    before = two_updates(recipe, task, method)
    moved = {key for key, value in method.named_parameters() if not torch.equal(value, before[key])}
    assert "network.layer4.0.conv1.weight" in moved and "network.layer1.0.conv1.weight" not in moved
    assert any(key.startswith("detector.model.encoder.layers.1") for key in moved)
    found = scores(method, task, recipe)
    both = ["ap", "ap50", "ap75"]
    assert list(found)[:3] == both and ("voc07_ap" in found) == (recipe.data.name == "voc")


@pytest.mark.parametrize("arm", ["batchformer", "batchformer_identity"])
def test_arms_with_batchformer(arm: str, root: Path, tmp_path: Path) -> None:
    """Weights, loss and scores of a whole run."""
    folder = run(of_two("my_boxes", root), arm, 0, root=tmp_path, device=CPU, quiet=True)
    trained = [record for record in records_of(folder) if record["kind"] == "train"]
    assert trained and all(np.isfinite(record["loss"]) for record in trained)
    assert metrics_of(folder)["ap"] >= 0
