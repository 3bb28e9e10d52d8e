"""CE-GZSL from a run's first update to its export: an epoch chosen by one training for another."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from batchformer.cli import main as cli
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import ce_gzsl
from batchformer.lab.recipes import find_recipe
from batchformer.lab.report.results.notes import left_out
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.runs.build import load_task
from batchformer.lab.runs.folder import recipe_from_json
from batchformer.lab.runs.load_run import restore
from helpers.data_files import feature_rows
from helpers.lab_runs import compare, evaluations_of, result_of

CPU = torch.device("cpu")
RECIPE = "my_features_ce_gzsl"
ARMS = ("baseline", "batchformer")
CLASSES, CHANNELS = 10, 6
#: Channels of the embedding, which recipes do not change.
WIDTH = 64


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes around points that are linear in their attributes; two classes are unseen."""
    stream = np.random.default_rng(0)
    attributes = stream.normal(size=(CLASSES, 4))
    rows = feature_rows(CLASSES, each=14, unseen=2, tested=6)
    points = (attributes @ stream.normal(size=(4, CHANNELS)))[rows["labels"]]
    file = tmp_path_factory.mktemp("features") / "mine.npz"
    np.savez(
        file,
        features=points + 0.5 * stream.normal(size=points.shape),
        att=attributes,
        val_classes=np.array([2, 5]),
        **rows,
    )
    return file


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Networks of the method with few channels: a checkpoint of 2,048 has hundreds of megabytes."""
    widths: dict[str, Any] = {"embedding": WIDTH, "direction": 32, "comparator": 64}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ce_gzsl, "CeGzsl", functools.partial(ce_gzsl.CeGzsl, **widths))
        yield
    load_task.cache_clear()


def tiny(features: Path) -> Recipe:
    recipe = find_recipe(RECIPE)
    sizes = {"noise": 4, "gan_hidden": 128, "synthetic": 9, "classifier_epochs": 30}
    return recipe.changed(
        data={"root": str(features), "batches": 2},
        hyper={"critic_steps": 2, "contrast": 0.1, **sizes},
        optim={"lr": 1e-2},
        train={"batch_size": 16, "epochs": 6, "eval_epochs": 1, "figures": False},
    )


@pytest.fixture(scope="module")
def root(small: None, features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both arms with two seeds."""
    place = tmp_path_factory.mktemp("runs")
    folders = list(compare(tiny(features), ARMS, [0, 1], root=place))
    assert folders == [place / RECIPE / arm / f"seed{seed}" for seed in (0, 1) for arm in ARMS]
    return place


@pytest.fixture(scope="module", params=ARMS)
def folder(root: Path, request: pytest.FixtureRequest) -> Path:
    return root / RECIPE / str(request.param) / "seed0"


def test_a_training_ends_with_the_epoch_that_was_best_in_the_other(root: Path) -> None:
    chosen = []
    for folder in sorted(root.glob(f"{RECIPE}/*/seed*")):
        choosing = [record["hm"] for record in evaluations_of(folder / "choose")]
        (training,) = evaluations_of(folder / "train")
        place = choosing.index(max(choosing))
        names = ("hm", "unseen", "seen", "auc")
        result = result_of(folder)
        assert training["epoch"] == place + 1
        expected = {name: training[name] for name in names}
        assert result["metrics"] == {**expected, "val": choosing[place]}
        assert list(result["metrics"]) == [*names, "val"]
        assert result["selected"] == f"epoch {place + 1}, by classes of validation"
        parts = [result_of(folder / part) for part in ("choose", "train")]
        assert result["updates"] == sum(part["updates"] for part in parts)
        with np.load(folder / "figures.npz") as figures:
            assert int(figures["chosen_epoch"]) == place + 1
        chosen.append(place + 1)
    assert min(chosen) < 6, "else the last epoch would do as well, and nothing was tested"


def test_a_classifier_that_diverges_ends_its_run_alone(
    small: None, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss is not logged, so only the scores are NaN."""
    wild = tiny(features).changed(hyper={"module_at": "classifier"}, module={"lr_factor": 1e30})
    folders = list(compare(wild, ARMS[::-1], [0], root=tmp_path))
    assert folders == [tmp_path / RECIPE / "baseline/seed0"]
    assert "batchformer seed 0 choose: At update 3, scores hold NaN" in capsys.readouterr().err
    (lost,) = left_out(find_runs(tmp_path))
    assert lost.startswith(f"{RECIPE}/batchformer/seed0 has not finished")


@pytest.mark.parametrize("part", ["choose", "train"])
def test_a_part_predicts_as_it_was_recorded(part: str, folder: Path) -> None:
    method, task, config = restore(folder / part, CPU)
    optimizer_step = OptimizerStep(recipe_from_json(config["trained"]).train, CPU)
    with torch.no_grad():
        found = task.evaluate(method, optimizer_step)
    last = evaluations_of(folder / part)[-1]
    assert found.metrics == {name: last[name] for name in ("hm", "unseen", "seen", "auc")}
    assert found.metrics == result_of(folder / part)["metrics"]
    with np.load(folder / part / "figures.npz") as figures:
        np.testing.assert_array_equal(figures["correct"], found.figures["correct"])


def test_the_export_is_a_network_of_features(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.pt"
    cli.main(["export", str(folder / "train"), "--to", str(file)])
    said = "the weights of the embedding, with the classifier of ce_gzsl, for load_state_dict"
    assert f"{file}: {said}(strict=True)" in capsys.readouterr().out
    network = nn.Sequential(nn.Linear(CHANNELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    network.load_state_dict(torch.load(file, weights_only=True), strict=True)
    method, _, _ = restore(folder / "train", CPU)
    x = torch.rand(5, CHANNELS, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(x), method.predict(x))
        assert len(network(x).unique(dim=0)) == 5
