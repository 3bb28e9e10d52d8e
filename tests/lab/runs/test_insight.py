"""What is seen of runs: kept at their end, and made again of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.cli.main import main
from batchformer.cli.results import print_report
from batchformer.insight.figures import influence
from batchformer.insight.figures.influence import gather
from batchformer.insight.look import measure, measured_rows, nearly_equal
from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine import log
from batchformer.lab.engine.method import Method
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.small import demo
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.runs.compare import run
from batchformer.lab.runs.insight import cam_of, figure_images, insight_of, save_insight
from helpers import lab_runs
from helpers.lab_runs import config_of, metrics_of, train_one

CPU = torch.device("cpu")


def short(recipe: Recipe, **train: Any) -> Recipe:
    options = {"updates": 8, "epochs": 0, "eval_every": 4, "figures": True, **train}
    return lab_runs.short(recipe, **options)


def arrays(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as found:
        return dict(found)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short runs of both arms with seed 0, and of BatchFormer with seed 1."""
    root = tmp_path_factory.mktemp("demos")
    for arm, seed in (("baseline", 0), ("batchformer", 0), ("batchformer", 1)):
        train_one(short(demo()), arm, seed, root=root)
    return root / "demo"


def test_a_run_keeps_it_and_a_folder_gives_it_again(tmp_path: Path) -> None:
    """Of the mean of weights, which is what is scored; its loss changes with the epoch."""
    recipe = demo().changed(method="ldam", hyper={"reweight_epoch": 0})
    folder = train_one(short(recipe, ema=0.5), "batchformer", 2, root=tmp_path)
    file = folder / "insight.npz"
    kept = arrays(file)
    counts = arrays(folder / "figures.npz")["train_counts"]
    assert kept["train_counts"].tolist() == counts.tolist()
    assert kept["reliability_correct"][0].sum() == arrays(folder / "figures.npz")["correct"].sum()
    file.unlink()
    assert insight_of(folder, CPU) == file
    again = arrays(file)
    assert set(again) == set(kept)
    for name, value in kept.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_a_control_has_learnt_nothing(demos: Path) -> None:
    """Random weights of the seed, statistics of the measured images, the loss of the end."""
    kept = arrays(demos / "batchformer/seed1/insight.npz")
    task = load_task(demo().data, CPU).seeded(1)
    method = build(with_arm(demo(), "batchformer"), 1, task)
    relations, shown = method.relations(), task.figure_images(0)  # type: ignore[union-attr]
    assert relations is not None
    rows = measured_rows(shown.labels, 4096, 1)
    with torch.no_grad():
        for module in method.train().modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        size = nearly_equal(len(rows), 128)
        for x in shown.batches(rows, size):
            relations.features(x)
        method.eval()
        expected = measure(relations, shown, rows, 128, 0)
    np.testing.assert_allclose(kept["gradient_untrained_abs"], expected["gradient_abs"], rtol=1e-4)
    assert kept["untrained_correct"] == expected["reliability_correct"][0].sum()
    assert not np.allclose(kept["gradient_untrained_abs"], kept["gradient_abs"], rtol=0.1)


def test_a_network_that_learnt_nothing_gets_no_verdict(tmp_path: Path) -> None:
    recipe = short(demo(), updates=1, eval_every=0)
    train_one(recipe, "batchformer", 0, root=tmp_path)
    data = gather(one_group(find_runs(tmp_path)))
    assert data is not None
    said = influence.caption(data).text
    assert "no verdict on the paper's claim" in said and "Before training it is" in said


def test_heat_maps_of_another_layer_are_made_of_a_checkpoint(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = demos / "batchformer/seed0"
    both = [str(demos / arm / "seed0") for arm in ("baseline", "batchformer")]
    before = (folder / "insight.npz").read_bytes()
    kept, other = arrays(folder / "insight.npz"), cam_of(folder, CPU, "layer1")
    assert str(kept["cam_layer"]) != str(other["cam_layer"]) == "layer1"
    assert not np.allclose(other["cam_heat"], kept["cam_heat"], atol=0.1)
    for name in ("cam_rows", "cam_confidence", "cam_predictions"):
        np.testing.assert_allclose(other[name], kept[name], rtol=1e-5)
    main(["show", "cam", *both, "--cam-layer", "layer1", "--device", "cpu"])
    assert "for the true class at layer1, seed 0" in " ".join(capsys.readouterr().out.split())
    assert (folder / "insight.npz").read_bytes() == before, "what is kept stays as it is"
    with pytest.raises(SystemExit):
        main(["show", "cam", *both, "--cam-layer", "layer1", "--data.root", "x", "--device", "cpu"])
    assert "data.root is for files" in capsys.readouterr().err, "it is where images are read"
    with pytest.raises(SystemExit):
        main(["show", "cam", *both, "--cam-layer", "released", "--device", "cpu"])
    assert "DigitsNet has no layer layer3; its parts are conv1" in capsys.readouterr().err


def test_arms_are_seen_on_the_same_images(demos: Path) -> None:
    places = {"baseline": "seed0", "batchformer": "seed1"}
    found = {arm: arrays(demos / arm / seed / "insight.npz") for arm, seed in places.items()}
    assert "attention" in found["batchformer"] and "attention" not in found["baseline"]
    for name in ("cam_rows", "cam_thumbnails", "projection_labels"):
        assert np.array_equal(found["baseline"][name], found["batchformer"][name])


def test_a_failure_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("batchformer.lab.runs.insight.look", fails)
    folder = train_one(short(demo()), "batchformer", 0, root=tmp_path)
    assert metrics_of(folder)["all"] >= 0
    assert not (folder / "insight.npz").exists()
    said = capsys.readouterr().err
    assert said.count("no figures of relations: RuntimeError: no room") == 1
    assert insight_of(folder, CPU) is None


@pytest.mark.usefixtures("three_angles")
def test_every_target_has_its_own(tmp_path: Path) -> None:
    recipe = short(find_recipe("rotated_digits_erm"), eval_every=0)
    folder = train_one(recipe, "batchformer", 0, root=tmp_path)
    for target in ("r0", "r45", "r75"):
        kept = arrays(folder / target / "insight.npz")
        assert kept["gradient_samples"].sum() == kept["reliability_count"][0].sum() > 0
    assert insight_of(folder / "r45", CPU) == folder / "r45" / "insight.npz"
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        insight_of(tmp_path, CPU)


def test_a_person_is_told_that_figures_are_measured_and_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "EVERY_S", 0.0)
    run(short(demo()), "batchformer", 0, root=tmp_path, device=CPU)
    seen = capsys.readouterr()
    assert "demo batchformer seed 0: measuring figures on 500 test images" in seen.err
    assert "--train.no-figures" in seen.err
    told = [line for line in seen.out.splitlines() if ": figures: " in line]
    steps = [line.removeprefix("demo batchformer seed 0: figures: ") for line in told]
    total = 4 + 1 + 3  # batches of 125, one of Grad-CAM, three to explore
    trained = [f"{done}/{total}" for done in range(1, total + 1)]
    assert steps == [*trained, "1/4", "2/4", "3/4", "4/4"], "then those of the untrained control"


def test_figures_can_be_left_out_which_is_recorded_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = short(demo(), figures=False)
    folder = run(recipe, "batchformer", 0, root=tmp_path, device=CPU)
    assert "figures" not in capsys.readouterr().err
    assert config_of(folder)["trained"]["train"]["figures"] is False
    assert not (folder / "insight.npz").exists()
    page = tmp_path / "page.html"
    print_report([folder], page)
    words = "left out by --train.no-figures"
    assert words in " ".join(capsys.readouterr().out.split()) and words in page.read_text()
    # A run with figures is the same run; and they can be measured later.
    assert train_one(short(demo()), "batchformer", 0, root=tmp_path) == folder
    insight_of(folder, CPU)
    monkeypatch.setattr("batchformer.lab.report.page.html.sections_of", lambda *_: [])
    print_report([folder], page)
    assert words not in " ".join(capsys.readouterr().out.split())


def test_a_failure_is_one_line_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError("out of memory\nand much more")

    assert not save_insight(lambda: None, tmp_path, "nothing to see")
    assert figure_images(load_task(demo().data, CPU), Method(), demo()) is None
    assert not save_insight(fails, tmp_path, "a run")
    said = capsys.readouterr().err
    assert said == "a run: no figures of relations: RuntimeError: out of memory\n"
    large = {"noise": np.random.default_rng(0).random(10**6)}
    assert not save_insight(lambda: large, tmp_path, "a run")
    assert "more than 5" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
