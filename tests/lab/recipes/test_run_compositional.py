"""CGE from a run's first update to its page: the network that was best on validation is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from batchformer.cli import main as cli
from batchformer.lab.data.sets.pairs import PairImage, write_pair_table
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import load_task
from batchformer.lab.runs.load_run import restore
from helpers.data_files import save_vectors
from helpers.lab_runs import compare, evaluations_of, metrics_of, result_of, scores_of

CPU = torch.device("cpu")
RECIPE, ARMS = "my_pairs_cge", ("baseline", "batchformer")
COLOURS = {"dark": 40, "grey": 120, "light": 210}
#: Objects are stripes of these widths.
STRIPES = {"fine": 2, "middle": 5, "coarse": 10}
#: Pairs of the splits that only images of theirs show.
UNSEEN = {"val": ("dark", "coarse"), "test": ("light", "fine")}
SIDE = 32


def picture(pair: tuple[str, str], stream: np.random.Generator) -> Image.Image:
    stripes = np.arange(36) // STRIPES[pair[1]] % 2
    level = COLOURS[pair[0]] + 40.0 * stripes[None, :, None]
    noisy = level + stream.normal(scale=12, size=(36, 36, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place, stream = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    rows: list[PairImage] = []
    pairs = [(colour, stripe) for colour in COLOURS for stripe in STRIPES]
    seen = [pair for pair in pairs if pair not in UNSEEN.values()]
    for split, count in (("train", 3), ("val", 2), ("test", 2)):
        for pair in seen + ([UNSEEN[split]] if split in UNSEEN else []):
            for _ in range(count):
                rows.append(PairImage(f"{len(rows)}.png", *pair, split))
                picture(pair, stream).save(place / rows[-1].image)
    write_pair_table(place / "pairs.csv", rows)
    save_vectors(place / "vectors.txt", (*COLOURS, *STRIPES), 4, stream)
    yield place / "pairs.csv"
    load_task.cache_clear()


@pytest.fixture(scope="module")
def root(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One seed of both arms, evaluated after each of five updates."""
    place, recipe = tmp_path_factory.mktemp("runs"), find_recipe(RECIPE)
    vectors = (str(table.parent / "vectors.txt"),)
    tiny = recipe.changed(
        data={"table": str(table), "vectors": vectors, "size": SIDE},
        # A small network: each checkpoint of the recipe's has hundreds of megabytes.
        model="resnet32",
        weights="",
        hyper={"graph_hidden": 16, "backbone_lr_factor": 1.0},
        optim={"lr": 1e-2},
        train={"batch_size": 8, "updates": 5, "eval_every": 1, "workers": 0, "log_every": 1},
    )
    folders = list(compare(tiny, ARMS, [0], root=place))
    assert folders == [place / RECIPE / arm / "seed0" for arm in ARMS]
    return place


@pytest.fixture(scope="module", params=ARMS)
def folder(root: Path, request: pytest.FixtureRequest) -> Path:
    return root / RECIPE / str(request.param) / "seed0"


def best(folder: Path) -> dict[str, Any]:
    """The first of the evaluations with the best score on validation."""
    return max(evaluations_of(folder), key=lambda record: float(record["val"]))


def test_the_result_is_the_evaluation_that_was_best_on_validation(folder: Path) -> None:
    found = metrics_of(folder)
    names = ["auc", "hm", "seen", "unseen", "attribute", "object"]
    assert list(found) == [*names, "attribute_unbiased", "object_unbiased", "val"]
    assert [record["step"] for record in evaluations_of(folder)] == [1, 2, 3, 4, 5]
    assert found == {name: best(folder)[name] for name in found}
    assert result_of(folder)["selected"] == "val"


def test_figures_are_those_of_the_result(folder: Path) -> None:
    with np.load(folder / "figures.npz") as figures:
        seen, unseen = figures["bias_seen"], figures["bias_unseen"]
    assert seen.shape == unseen.shape and seen.ndim == 1
    area = float(np.sum((unseen[1:] - unseen[:-1]) * (seen[1:] + seen[:-1]) / 2)) / 100
    found = metrics_of(folder)
    assert area == pytest.approx(found["auc"])
    assert (seen.max(), unseen.max()) == (found["seen"], found["unseen"])


def test_the_network_of_the_result_is_kept_and_restored(folder: Path, tmp_path: Path) -> None:
    newest = max((folder / "best").glob("*.pt"))
    assert int(newest.name.split(".")[0]) == best(folder)["step"]
    assert scores_of(folder) == metrics_of(folder)
    # Of the last update there is a checkpoint as well, which is not what is restored.
    shutil.copytree(folder, tmp_path / "seed0")
    shutil.rmtree(tmp_path / "seed0/checkpoints")
    assert scores_of(tmp_path / "seed0") == metrics_of(folder)


def test_one_of_the_arms_was_best_before_its_end(root: Path) -> None:
    """Else the last network would have served all of these tests."""
    arms = [root / RECIPE / arm / "seed0" for arm in ARMS]
    assert any(best(own) != evaluations_of(own)[-1] for own in arms)


def test_the_page_shows_seen_and_unseen_pairs(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    cli.main(["report", str(root), "--to", str(page)])
    html = page.read_text()
    assert "Seen and unseen pairs" in html and "AUC is the area" in html
    assert "means over 1 seed." in html
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert "AUC" in [words[0] for words in table]


def test_the_export_is_the_network_with_the_pairs_as_its_classifier(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.pt"
    cli.main(["export", str(folder), "--to", str(file)])
    said = "the weights of resnet32, with the classifier of cge, for load_state_dict(strict=True)"
    assert said in capsys.readouterr().out
    network: Any = build_model("resnet32", 9)
    network.fc = nn.Sequential(nn.Identity(), nn.Linear(64, 9, bias=False))
    network.load_state_dict(torch.load(file, weights_only=True), strict=True)
    x = torch.randn(5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(x), restore(folder, CPU)[0].predict(x))
