"""Every recipe of detection trains: two updates at 64 pixels, on coloured rectangles.

Losses and optimizers are the recipes' own. The network is timm's ResNet for tests, in place of the
one that test_networks.py builds; of the regions that a detector proposes, a few are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.cli import main as cli
from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.models import detr
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, load_task
from helpers.data_files import Written, save_voc
from helpers.lab_runs import config_of, metrics_of, records_of, same, state_of, train_one
from helpers.smoke import CPU, scores, tiny, two_updates

pytestmark = pytest.mark.usefixtures("few_regions")
#: voc_moco_v3 differs from voc_moco_v2 in what it starts from.
NAMES = [
    name for name in RECIPES if find_recipe(name).method == "detector" and name != "voc_moco_v3"
]
SIDES = {"shorter": (48, 64), "shorter_at_test": 64, "longest": 96}
COLOURS = {"dog": (220, 40, 40), "cat": (40, 40, 220)}
#: Lists of VOC, with their images, and the name that these have in COCO.
LISTS = {
    "2007/trainval": (4, "train2017"),
    "2012/trainval": (2, "unused"),
    "2007/test": (2, "val2017"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same images in the folders of VOC, and most of them in those of COCO."""
    place, stream = tmp_path_factory.mktemp("VOCdevkit"), np.random.default_rng(0)
    categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS)]
    for name, (count, coco) in LISTS.items():
        year, part = name.split("/")
        (place / coco).mkdir()
        (place / f"VOC{year}/JPEGImages").mkdir(parents=True, exist_ok=True)
        listed: dict[str, list[Written]] = {f"{part}_{n}": [] for n in range(count)}
        boxes = []
        for image, (stem, objects) in enumerate(listed.items()):
            pixels = stream.integers(90, 140, (80, 96, 3), dtype=np.uint8)
            for number, (label, colour) in enumerate(COLOURS.items()):
                left, top = (int(v) for v in stream.integers(1, 12, 2))
                left, top = left + 40 * number, top + 10 * number
                right, bottom = left + 38, top + 40
                pixels[top - 1 : bottom, left - 1 : right] = colour
                objects.append((label, (left, top, right, bottom), 0))
                box = [left - 1, top - 1, 39, 41]
                boxes.append({"image_id": image, "category_id": number, "bbox": box})
            for file in (f"VOC{year}/JPEGImages/{stem}.jpg", f"{coco}/{image}.jpg"):
                Image.fromarray(pixels).save(place / file)
        save_voc(place, {name: listed})
        images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(count)]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (place / "annotations").mkdir(exist_ok=True)
        (place / f"annotations/instances_{coco}.json").write_text(json.dumps(content))
    yield place
    load_task.cache_clear()


def small(name: str, root: Path) -> Recipe:
    """The recipe on small images, two in a batch, with a small network."""
    recipe = find_recipe(name).changed(start="")
    precise = min(1, recipe.data.precise_norm)  # type: ignore[union-attr]
    length = {"batch_size": 2, "updates": 2, "eval_every": 0, "checkpoint_every": 1}
    return tiny(recipe, {"root": str(root), "precise_norm": precise, **SIDES}, length)


@pytest.mark.parametrize("name", NAMES)
def test_two_updates(name: str, root: Path) -> None:
    recipe: Any = with_arm(small(name, root), "baseline")
    task = load_task(recipe.data, CPU)
    assert task.facts()["train"] == sum(LISTS[part][0] for part in recipe.data.trained_on)
    method: Any = build(recipe, 0, task)

    def look(step: int, batch: object, losses: Mapping[str, float]) -> None:
        assert list(losses) == ["loss", "objectness", "proposals", "classes", "boxes"]

    before = two_updates(recipe, task, method, look)
    moved = {k for k, v in method.named_parameters() if not torch.equal(before[k], v)}
    assert {"network.conv1.0.weight", "network.layer4.0.conv1.weight"} <= moved
    assert not any(key.startswith("network.fc") for key in moved)
    assert any(key.startswith("detector.rpn") for key in moved)
    method.detector.roi_heads.score_thresh = 0.0  # so that something is found
    found = scores(method, task, recipe)
    assert list(found)[:4] == ["ap", "ap50", "ap75", "voc07_ap"]
    assert all(0 <= value <= 100 for value in found.values())
    # The paper's numbers are detectron2's, which follow VOC2007's rule and not COCO's.
    assert [*find_recipe(name).paper.get("baseline", {})] in ([], [*found][3:6])


def test_a_stopped_run_goes_on_as_if_it_had_not_been(root: Path, tmp_path: Path) -> None:
    recipe = small("my_voc", root).changed(train={"precision": "fp32"})
    states = []
    for stopped in (False, True):
        place = tmp_path / str(stopped)
        folder = train_one(recipe, "baseline", 0, root=place)
        if stopped:
            newest = max((folder / "checkpoints").iterdir(), key=lambda file: file.name)
            newest.unlink()
            (folder / "result.json").unlink()
            assert train_one(recipe, "baseline", 0, root=place) == folder
        states.append((metrics_of(folder), state_of(folder)))
    assert same(*states)


def test_from_the_command_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "--data.root": str(root),
        "--data.shorter": "64",
        "--data.shorter-at-test": "64",
        "--train.updates": "1",
        "--train.batch-size": "2",
        "--train.workers": "2",
        "--model": "test_resnet",
        "--runs": str(tmp_path),
        "--device": "cpu",
    }
    given = [word for pair in options.items() for word in pair]
    with pytest.raises(SystemExit):
        cli.main(["train", "my_voc", "--arm", "batchformer", *given])
    assert "BatchFormer takes no part in detector" in capsys.readouterr().err
    cli.main(["train", "my_voc", *given])
    folder = tmp_path / "my_voc" / "baseline" / "seed0"
    config = config_of(folder)
    assert config["data"]["classes"] == 20 and config["data"]["train"] == 4
    with np.load(folder / "figures.npz") as figures:
        assert figures["class_ap"].shape == (20,)
        scored = ~np.isnan(figures["class_ap"])
        assert sorted(figures["classes"][scored]) == ["cat", "dog"]
    capsys.readouterr()
    cli.main(["evaluate", str(folder), "--device", "cpu"])
    assert "ap50" in capsys.readouterr().out
    cli.main(["export", str(folder), "--to", str(tmp_path / "network.pt"), "--device", "cpu"])
    exported = torch.load(tmp_path / "network.pt", weights_only=True)
    assert "conv1.0.weight" in exported and not any("detector" in name for name in exported)
    assert "The detector that was trained on this network is not in the file" in (
        capsys.readouterr().out
    )


# DETR

#: my_boxes is Deformable DETR, too.
OF_DETR = [
    name
    for name in RECIPES
    if find_recipe(name).method == "detr" and not name.endswith("deformable_detr")
]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16}
    monkeypatch.setattr(detr, "SIZES", {**sizes, "decoder_ffn_dim": 16})


def of_two(name: str, root: Path) -> Recipe:
    """Two updates of two images, in parts where the recipe has some, on a smaller network."""
    recipe: Any = find_recipe(name).changed(model="resnet18", weights="", hyper={"queries": 5})
    lists = {"trained_on": ("2007/trainval",)} if recipe.data.name == "voc" else {}
    length = {"batch_size": 2, "accumulate": min(2, recipe.train.accumulate), "updates": 2}
    more = {"epochs": 0, "eval_every": 0, "workers": 0, "figures": False, "precision": "fp32"}
    return recipe.changed(data={"root": str(root), **SIDES, **lists}, train={**length, **more})


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", OF_DETR)
def test_two_updates_of_detr(name: str, root: Path) -> None:
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


@pytest.mark.usefixtures("narrow")
def test_a_run_of_detr_with_batchformer(root: Path, tmp_path: Path) -> None:
    """Weights, loss and scores of a whole run."""
    folder = train_one(of_two("my_boxes", root), "batchformer", 0, root=tmp_path)
    trained = [record for record in records_of(folder) if record["kind"] == "train"]
    assert trained and all(np.isfinite(record["loss"]) for record in trained)
    assert metrics_of(folder)["ap"] >= 0


@pytest.mark.usefixtures("narrow")
def test_check_says_whether_batchformer_acts_in_a_detector(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [word for side in ("shorter", "shorter-at-test") for word in (f"--data.{side}", "48")]
    small = ["--model", "resnet18", "--weights=", "--data.longest", "96", "--train.batch-size", "4"]
    small += ["--hyper.queries", "5"]
    cli.main(["check", "my_boxes", "--data.root", str(root), *small, *sides, "--device", "cpu"])
    assert "BatchFormer is acting" in capsys.readouterr().out
