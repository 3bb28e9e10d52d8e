"""Every recipe of zero-shot learning trains: two updates, on noise laid out as its data.

Networks have random weights, and are the smaller ones of their kind; losses, optimizers and worlds
are the recipes' own. Pairs and classes are few, and so are channels of vectors and features.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.io import savemat

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import PairConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.sets.attribute_sets import ATTRIBUTE_SETS
from batchformer.lab.data.sets.known_pairs import METADATA, PAIR_SETS
from batchformer.lab.data.sets.pairs import PairImage, write_pair_table
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optim import parameters_of
from batchformer.lab.methods import ce_gzsl
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.sub_runs import parts_of
from batchformer.lab.tasks.base import Task
from batchformer.lab.tasks.compositional import CompositionalTask
from helpers.data_files import feature_rows, save_noise, save_vectors
from helpers.networks import only_built
from helpers.smoke import CPU, moved_parts, part_names, scores, tiny, two_updates

OF_PAIRS = [name for name in RECIPES if find_recipe(name).task == "compositional"]
OF_FEATURES = [name for name in RECIPES if find_recipe(name).task == "generalized"]
#: Known sets of features that recipes train on.
KNOWN = {find_recipe(name).data.name for name in OF_FEATURES} - {"npz"}
PAIR_SCORES = ["auc", "hm", "seen", "unseen", "attribute", "object"]
PAIR_SCORES += ["attribute_unbiased", "object_unbiased", "val"]
#: Of three attributes and three objects: five pairs are seen, and two pairs are in no list.
SEEN = [
    ("Faux.Fur", "Boots.Mid-Calf"),
    ("Faux.Fur", "cat"),
    ("old", "cat"),
    ("old", "dog"),
    ("wet", "dog"),
]
UNSEEN = {"val": ("wet", "cat"), "test": ("old", "Boots.Mid-Calf")}
WORDS = ("faux", "fur", "old", "wet", "boots", "mid", "calf", "cat", "dog")
#: Files of word vectors by their names in the recipes, with their dimensions.
VECTORS = {"word2vec.txt": 5, "fasttext.txt": 3, "vectors.txt": 4}
#: Folder as published, and where an image of a pair lies in it, while the metadata has "a o/".
FOLDERS = {
    name: (known.folders[0], "{0} {1}" if name == "c_gqa" else "{0}_{1}")
    for name, known in PAIR_SETS.items()
}
#: Rows of pairs in a split, of each pair that it shows.
EACH = {"train": 3, "val": 2, "test": 2}
CLASSES, UNSEEN_CLASSES, VALIDATION_CLASSES, CHANNELS, ATTRIBUTES = 8, 2, 2, 8, 4
#: What makes networks small; a method reads its own.
SMALL = {"gan_hidden": 16, "noise": 6, "synthetic": 5, "classifier_epochs": 2}
WIDTHS: dict[str, Any] = {"embedding": 64, "direction": 32, "comparator": 64}


def shown() -> list[tuple[tuple[str, str], str]]:
    """Pair and split of every image."""
    pairs = {split: [*SEEN, *([UNSEEN[split]] if split in UNSEEN else [])] for split in EACH}
    return [(pair, split) for split, n in EACH.items() for pair in pairs[split] for _ in range(n)]


def write_pairs(place: Path, folder: str, stream: np.random.Generator) -> None:
    """Lists, metadata and images, in the published layout."""
    entries = []
    for number, (pair, split) in enumerate(shown()):
        save_noise(place / "images" / folder.format(*pair) / f"{number}.jpg", stream)
        own = {"image": f"{pair[0]} {pair[1]}/{number}.jpg", "attr": pair[0], "obj": pair[1]}
        entries.append({**own, "set": split})
    lists = place / "compositional-split-natural"
    lists.mkdir()
    for split in EACH:
        own_pairs = sorted({pair for pair, other in shown() if other == split})
        (lists / f"{split}_pairs.txt").write_text("".join(f"{a} {o}\n" for a, o in own_pairs))
    torch.save([*entries, {**entries[0], "attr": "NA"}], place / METADATA)


def write_table(place: Path, stream: np.random.Generator) -> None:
    rows = [PairImage(f"{n}.png", *pair, split) for n, (pair, split) in enumerate(shown())]
    for row in rows:
        save_noise(place / row.image, stream)
    write_pair_table(place / "pairs.csv", rows)


def write_features(place: Path, stream: np.random.Generator) -> None:
    """The same rows as a file of your own and as the benchmark's two."""
    given = feature_rows(CLASSES, each=6, unseen=UNSEEN_CLASSES, tested=1)
    given["features"] = stream.random((len(given["labels"]), CHANNELS)).astype(np.float32)
    given["att"] = stream.random((CLASSES, ATTRIBUTES)).astype(np.float32)
    given["val_classes"] = np.arange(VALIDATION_CLASSES)
    np.savez(place / "mine.npz", **given)
    labels = given["labels"][:, None] + 1.0
    rows = {key: given[key][:, None] + 1.0 for key in given if key.endswith("_loc")}
    chosen = np.isin(given["labels"][given["trainval_loc"]], given["val_classes"])
    rows["val_loc"], rows["train_loc"] = rows["trainval_loc"][chosen], rows["trainval_loc"][~chosen]
    for name in KNOWN:
        known = ATTRIBUTE_SETS[name]
        folder = place / "mat" / known.title
        folder.mkdir(parents=True)
        savemat(folder / "res101.mat", {"features": given["features"].T, "labels": labels})
        savemat(folder / known.splits[0], {"att": given["att"].T, **rows})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the data, which every set is in; known sets are of these sizes."""
    place, stream = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for folder, form in FOLDERS.values():
        write_pairs(place / folder, form, stream)
    write_table(place, stream)
    for name, dim in VECTORS.items():
        save_vectors(place / name, WORDS, dim, stream)
    write_features(place, stream)
    sizes: dict[str, Any] = {"attributes": 3, "objects": 3, "seen": 5, "pairs": 7}
    classes = {"classes": CLASSES, "seen": CLASSES - UNSEEN_CLASSES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHFORMER_DATA", str(place))
        for name, known in list(PAIR_SETS.items()):
            patch.setitem(PAIR_SETS, name, dataclasses.replace(known, **sizes))
        for name in KNOWN:
            small = dataclasses.replace(ATTRIBUTE_SETS[name], **classes)
            patch.setitem(ATTRIBUTE_SETS, name, small)
        patch.setattr(ce_gzsl, "CeGzsl", functools.partial(ce_gzsl.CeGzsl, **WIDTHS))
        load_task.cache_clear()
        yield place
    load_task.cache_clear()


LENGTH = {"updates": 2, "epochs": 0, "eval_every": 0}


def tiny_pairs(name: str, place: Path) -> Recipe:
    """The recipe at 32 pixels with six images in a batch; vectors and sets are where it says."""
    recipe = find_recipe(name)
    own = {"table": str(place / "pairs.csv")} if recipe.data.name == "table" else {}
    return tiny(recipe, {"size": 32, **own}, {"batch_size": 6, **LENGTH})


def tiny_features(name: str, root: Path) -> Recipe:
    recipe = tiny(find_recipe(name), {"root": str(root)}, {"batch_size": 12})
    return recipe.changed(hyper=SMALL)


def updated(recipe: Recipe, task: Task, method: Method) -> set[str]:
    """Parts of the method that two updates moved."""

    def look(step: int, batch: dict[str, Any], losses: object) -> None:
        rows = getattr(recipe.data, "batches", 1) * recipe.train.batch_size
        assert len(batch["x"]) == len(batch["y"]) == rows

    return moved_parts(two_updates(recipe, task, method, look), method)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_two_updates_on_pairs(name: str, data: Path) -> None:
    recipe = tiny_pairs(name, data)
    task = cast(CompositionalTask, load_task(recipe.data, CPU))
    opened = name.endswith("_open")
    assert task.num_classes == (9 if opened else 7) and int(task.compositions.seen.sum()) == 5
    config = cast(PairConfig, recipe.data)
    assert (config.world, config.mask) == (("open", True) if opened else ("closed", False))
    assert task.words.matrix.shape == (6, sum(VECTORS[file] for file in config.vectors))
    assert not task.words.random and "Faux.Fur" in task.words.composed

    method: Any = build(with_arm(recipe, "batchformer"), 0, task)
    moved = updated(recipe, task, method)
    expected = {"encoder", "network", "graph"}
    if name == "ut_zappos_cge":
        expected |= {"embedder"}
    if recipe.method == "compcos":
        expected = {"encoder", "attributes", "objects", "composition", "embedder"}
        assert not method.network.training, "the features are frozen"
        unseen = ~task.compositions.seen
        lowered = method.margins[unseen] != 0
        assert lowered.all() if opened else not lowered.any()
        assert not method.margins[~unseen].any()
    assert moved == expected
    assert list(scores(method, task, recipe)) == PAIR_SCORES
    assert set(recipe.paper.get("baseline", {})) <= set(PAIR_SCORES)
    with torch.no_grad():
        assert method.predict(torch.zeros(2, 3, 32, 32)).shape == (2, task.num_classes)

    parts = part_names(method)
    with only_built():
        baseline = build(with_arm(recipe, "baseline"), 0, task)
    assert part_names(baseline) == parts - {"encoder"}


def trainings_of(run: Run) -> tuple[Run, ...]:
    """All trainings of a run, as if those that others wait for had ended after an epoch."""
    first, *_ = parts = parts_of(run)
    if not first.part:
        return parts
    first.folder.mkdir(parents=True)
    record = {"kind": "eval", "epoch": 1, "step": 1, "hm": 1.0}
    (first.folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (first.folder / "result.json").write_text('{"metrics": {}}')
    return parts_of(run)


@pytest.mark.parametrize("name", OF_FEATURES)
def test_two_updates_on_features(
    name: str,
    data: Path,
    tmp_path: Path,
) -> None:
    root = "mine.npz" if find_recipe(name).data.name == "npz" else "mat"
    closed = find_recipe(name).method == "eszsl"
    arm = "baseline" if closed else "batchformer"
    whole = Run(tiny_features(name, data / root), arm, 0, tmp_path, CPU)
    trainings = {part.part: part for part in trainings_of(whole)}
    assert list(trainings) == ([""] if closed else ["choose", "train"])
    # Your own features are read from another file, and trained on as those of CUB.
    for part, one in list(trainings.items())[: 1 if name.startswith("my_") else 2]:
        recipe, task = one.trained, one.task
        assert task.num_classes == (CLASSES - UNSEEN_CLASSES if part == "choose" else CLASSES)
        method: Any = build(recipe, 0, task)
        moved = updated(recipe, task, method)
        optimizers = method.optimizers(recipe.optim).values()
        held = {id(p) for one in optimizers for p in parameters_of(one)}
        trained = {n.split(".")[0] for n, p in method.named_parameters() if id(p) in held}
        assert moved == trained and bool(trained) != closed
        metrics = scores(method, task, recipe)
        assert list(metrics) == ["hm", "unseen", "seen", "auc"]
        u, s = metrics["unseen"], metrics["seen"]
        assert metrics["hm"] == pytest.approx(2 * u * s / (u + s) if u + s else 0)
        with torch.no_grad():
            assert method.predict(torch.zeros(2, CHANNELS)).shape == (2, task.num_classes)
        if not closed:
            with only_built():
                baseline = part_names(build(with_arm(one.recipe, "baseline"), 0, task))
            assert (
                baseline
                == part_names(method) - {"encoder"}
                == (trained | {"classifier"}) - {"encoder"}
            )
            assert "encoder" in part_names(method)


def test_every_set_has_a_recipe() -> None:
    assert {find_recipe(name).data.name for name in OF_PAIRS} == {*PAIR_SETS, "table"}
    assert "cub" in KNOWN


@pytest.mark.parametrize("name", ["ut_zappos_cge", "mit_states_compcos"])
def test_an_encoder_that_is_frozen_stays(name: str, data: Path) -> None:
    recipe = with_arm(tiny_pairs(name, data), "batchformer_frozen")
    task = load_task(recipe.data, CPU)
    method = build(recipe, 0, task)
    moved = updated(recipe, task, method)
    assert "embedder" in moved and "encoder" not in moved and "encoder" in part_names(method)
