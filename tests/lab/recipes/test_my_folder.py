"""A person's own images, from the command line to the result."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.cli import main as cli
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes.small import my_folder
from batchformer.lab.report.results.configuration import comparable
from batchformer.lab.report.results.notes import data_notes
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.runs import run as runs
from batchformer.lab.runs.build import load_task
from batchformer.lab.runs.compare import run
from batchformer.lab.runs.folder import CHANGED
from batchformer.lab.runs.load_run import restore
from helpers.data_files import save_noise
from helpers.lab_runs import (
    StopsAt,
    compare,
    config_of,
    metrics_of,
    records_of,
    same,
    short,
    state_of,
    train_one,
)

pytestmark = pytest.mark.usefixtures("one_block")
CPU = torch.device("cpu")
SIZES = {"ant": 7, "bee": 4, "cow": 3}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, stream = tmp_path_factory.mktemp("mine"), np.random.default_rng(0)
    for name, size in SIZES.items():
        for part, count in (("train", size), ("test", 2)):
            for i in range(count):
                save_noise(folder / part / name / f"{i}.png", stream, 33 + i, 41)
    return folder


def small(root: Path, weights: str = "", **train: Any) -> Recipe:
    options = {"batch_size": 4, "updates": 4, "eval_every": 2, "workers": 0, **train}
    recipe = short(my_folder(), **options)
    data = {"root": str(root), "size": 32}
    return recipe.changed(data=data, model="resnet32", weights=weights)


def test_resumed_on_files_equals_unbroken_and_workers_end_on_errors(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_one(small(root), "batchformer", 0, root=tmp_path / "a")
    with monkeypatch.context() as patch:
        made = runs.Run.feed
        patch.setattr(runs.Run, "feed", lambda self: StopsAt(made(self), 3))
        broken = small(root, workers=2)
        with pytest.raises(OSError, match="the disk is gone"):
            train_one(broken, "batchformer", 0, root=tmp_path / "b")
    assert not multiprocessing.active_children(), "workers end with the run that fails"
    # The number of workers changes no result, so a run may go on with another.
    resumed = train_one(small(root), "batchformer", 0, root=tmp_path / "b")
    assert records_of(whole) == records_of(resumed)
    assert same(state_of(whole), state_of(resumed))


def test_arms_share_their_batches_side_by_side(root: Path, tmp_path: Path) -> None:
    arms, results = ("baseline", "batchformer"), []
    for together in (1, 2):
        place = tmp_path / str(together)
        found = sorted(compare(small(root, workers=1), arms, [0], together=together, root=place))
        results.append([metrics_of(f) for f in found])
    assert len(results[0]) == 2 and results[0] == results[1]
    assert not multiprocessing.active_children()


def test_a_class_without_a_test_image_is_said_once_and_stands_in_the_page(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = shutil.copytree(root, tmp_path / "photos")
    shutil.rmtree(photos / "test/bee")
    arguments = ["compare", "my_folder", "--data", str(photos), "--data.size", "32"]
    arguments += ["--model", "resnet32", "--train.updates", "1", "--train.batch-size", "4"]
    arguments += ["--train.workers", "0", "--device", "cpu", "--seeds", "2", "--train.no-figures"]
    cli.main([*arguments, "--runs", str(tmp_path / "runs")])
    said = capsys.readouterr().err.splitlines()
    sizes = "3 classes, 14 training images: 7 in the largest class, 3 in the smallest"
    assert said.count(f"photos: {sizes}; 0 many, 0 medium, 3 few") == 1
    line = "1 of 3 classes have training images and no test image, so no score covers them"
    assert said.count(f"photos: {line}: bee") == 1
    place = tmp_path / "runs/my_folder"
    for folder in place.glob("*/seed*"):
        data = config_of(folder)["data"]
        assert data["remarks"] == [f"{line}: bee"] and data["classes_without_test_image"] == 1
        assert set(metrics_of(folder)) == {"all", "few", "mean_class", "ece"}
    assert f"<li>{line}: bee.</li>" in (place / "report.html").read_text()
    train_one(small(photos, updates=1), "baseline", 0, root=tmp_path)
    assert "photos:" not in capsys.readouterr().err


def test_a_run_begins_with_a_file_of_weights(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    other = build_model("resnet32", 10)
    file = tmp_path / "w.pth"
    torch.save(other.state_dict(), file)
    frozen = small(root, str(file), updates=1, eval_every=0)
    frozen = frozen.changed(optim={"lr": 1e-12})
    folder = run(frozen, "baseline", 0, root=tmp_path / "runs", device=CPU)
    assert "without its classifier (fc.weight is (10, 64) there and (3, 64) here" in (
        capsys.readouterr().err
    )
    config = config_of(folder)
    assert config["weights"]["file"] == str(file) and len(config["weights"]["sha256"]) == 64
    file.unlink()  # a trained run does not need it
    weight = state_of(folder)["network.layer1.0.conv1.weight"]
    expected = other.state_dict()["layer1.0.conv1.weight"]
    torch.testing.assert_close(weight, expected, atol=1e-6, rtol=0)
    with pytest.raises(FileNotFoundError, match="--weights FILE"):
        run(frozen, "batchformer", 0, root=tmp_path / "runs", device=CPU)


def test_a_run_is_scored_and_exported_from_another_folder_and_after_its_data_has_moved(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("work", "elsewhere"):
        (tmp_path / name).mkdir()
    shutil.copytree(root, tmp_path / "work/photos")
    monkeypatch.chdir(tmp_path / "work")
    recipe = small(Path("photos"), updates=1)
    folder = train_one(recipe, "batchformer", 0, root=tmp_path)
    expected = restore(folder, CPU)[0].deployed().state_dict()
    config = config_of(folder)
    place = str(tmp_path / "work/photos")
    assert config["trained"]["data"]["root"] == config["recipe"]["data"]["root"] == place
    assert train_one(recipe, "batchformer", 0, root=tmp_path) == folder

    monkeypatch.chdir(tmp_path / "elsewhere")
    cli.main(["evaluate", str(folder), "--device", "cpu"])
    scores = capsys.readouterr().out

    (tmp_path / "work/photos").rename(tmp_path / "moved")
    load_task.cache_clear()
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(folder), "--device", "cpu"])
    assert place in capsys.readouterr().err
    cli.main(["evaluate", str(folder), "--device", "cpu", "--data", "../moved"])
    assert capsys.readouterr().out == scores

    shutil.rmtree(tmp_path / "moved")
    load_task.cache_clear()
    cli.main(["export", str(folder), "--to", "plain.pt"])
    found = torch.load("plain.pt", weights_only=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_an_image_that_changes_under_its_name_is_noticed(root: Path, tmp_path: Path) -> None:
    photos = shutil.copytree(root, tmp_path / "photos")
    recipe = small(photos, updates=1, figures=False)

    def trained(arm: str) -> Path:
        return train_one(recipe, arm, 0, root=tmp_path)

    first = trained("baseline")
    Image.new("RGB", (90, 90)).save(photos / "train/ant/0.png")
    trained("batchformer")
    groups = comparable(find_runs(tmp_path / recipe.name))
    assert len(groups) == 2 and "data_found.file_sizes_sha256" in groups[0].warnings[0]
    assert "remarks" not in config_of(first)["data"]
    for _ in range(2):  # it is still said when the run goes on once more
        (first / "result.json").unlink()
        trained("baseline")
        assert config_of(first)["data"]["remarks"] == [CHANGED]
    assert CHANGED in data_notes(find_runs(tmp_path / recipe.name))


def test_one_tree_is_divided_said_in_a_line_and_recorded(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(root / "train", tmp_path / "photos")
    recipe = small(tmp_path / "photos", updates=1, figures=False)
    folder = run(recipe, "baseline", 0, root=tmp_path, device=CPU)
    said = [line for line in capsys.readouterr().err.splitlines() if "held out" in line]
    assert len(said) == 1 and "3 of 14 images, drawn by data.seed 0" in said[0]
    data = config_of(folder)["data"]
    assert (data["train"], data["test"], data["split_seed"]) == (11, 3, 0)
    assert data["split_sha256"][:12] in said[0]
    assert metrics_of(folder)["all"] >= 0
    restore(folder, CPU)
    shutil.copy(tmp_path / "photos/ant/0.png", tmp_path / "photos/ant/new.png")
    load_task.cache_clear()
    with pytest.raises(ValueError, match=r"trained on other images.* --data\.root"):
        restore(folder, CPU)
