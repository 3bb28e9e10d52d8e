"""The files of a run's folder: written whole, read back, and not mixed with others."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.config.recipe import NO_EFFECT_ON_SAME_DATA, flatten
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.folder import (
    findings_of,
    has_result,
    read_config,
    read_figures,
    read_result,
    recipe_from_json,
    recipe_to_json,
    refuse_other_configuration,
    with_absolute_paths,
    write_figures,
    write_json,
    write_result,
)
from helpers.lab_runs import configuration, trained_with

# Recipes as JSON


def test_data_is_read_as_its_task_has_it() -> None:
    plain = recipe_to_json(find_recipe("demo"))
    domains = {"name": "pacs", "target": "sketch"}
    read = recipe_from_json({**plain, "task": "domains", "data": domains})
    assert read.data == DomainConfig(name="pacs", target="sketch")
    assert recipe_from_json(recipe_to_json(read)) == read


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"colour": "blue"}, TypeError, "colour"),
        ({"task": "captioning"}, ValueError, "no task 'captioning'; there are long_tailed"),
        ({"task": ["long_tailed"]}, ValueError, "no task"),
        ({"data": None}, TypeError, "data is None, not settings by name"),
        ({"data": {"target": "sketch"}}, TypeError, "target"),
        ({"data": {"ratio": "many"}}, ValueError, "data.ratio is 'many'; it takes a finite number"),
        ({"data": {"train_list": ["a"]}}, ValueError, "data.train-list is .*str or None"),
        ({"train": [1, 2]}, TypeError, "train is .*, not settings by name"),
        ({"method": "crt"}, ValueError, "crt"),
    ],
)
def test_a_recipe_of_another_version_is_refused(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        recipe_from_json({**recipe_to_json(find_recipe("demo")), **change})


def test_one_folder_of_data_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "work").mkdir()
    names = set()
    for folder, given in (("", "photos"), ("work", "../photos"), ("", "work/../photos/")):
        monkeypatch.chdir(tmp_path / folder)
        found: Any = with_absolute_paths(find_recipe("my_folder").changed(data={"root": given}))
        names.add(found.data.root)
    assert names == {str(tmp_path / "photos")}


# Files


def test_a_configuration_is_read_back(tmp_path: Path) -> None:
    assert read_config(tmp_path) is None and read_config(tmp_path / "nowhere") is None
    write_json(tmp_path / "config.json", configuration())
    assert read_config(tmp_path) == configuration()
    write_json(tmp_path / "config.json", {**configuration(), "format": 2})
    with pytest.raises(ValueError, match="has format 2, and this version"):
        read_config(tmp_path)


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"metrics": {"average": 50.0}})
    assert json.loads(path.read_text()) == {"metrics": {"average": 50.0}}
    before = path.read_bytes()
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, {"metrics": {"average": 60.0}, "folder": tmp_path})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def test_a_score_that_could_not_be_measured_is_null_and_comes_back_as_nan(tmp_path: Path) -> None:
    found = {"swad": {"threshold": math.inf, "converged": False}}
    metrics = {"all": 50.5, "few": math.nan, "ece": -math.inf}
    write_result(tmp_path, {"metrics": metrics, "updates": 6, "findings": found})
    text = (tmp_path / "result.json").read_text()
    assert json.loads(text, parse_constant=no_constant) == {
        "metrics": {"all": 50.5, "few": None, "ece": None},
        "updates": 6,
        "findings": {"swad": {"threshold": None, "converged": False}},
    }
    result = read_result(tmp_path)
    assert has_result(tmp_path) and result["updates"] == 6 and result["metrics"]["all"] == 50.5
    assert math.isnan(result["metrics"]["few"]) and math.isnan(result["metrics"]["ece"])


def test_figures_come_back(tmp_path: Path) -> None:
    figures = {"per_class": np.array([1.0, np.nan]), "classes": np.array(["ant", "bee"])}
    write_figures(tmp_path / "figures.npz", figures)
    found = read_figures(tmp_path / "figures.npz")
    assert set(found) == set(figures)
    np.testing.assert_array_equal(found["per_class"], figures["per_class"])
    assert found["classes"].tolist() == ["ant", "bee"]
    assert [path.name for path in tmp_path.iterdir()] == ["figures.npz"]
    with (tmp_path / "figures.npz").open("wb") as file:
        np.save(file, figures["per_class"])  # an array instead of an archive of some
    with pytest.raises(ValueError, match="damaged or missing"):
        read_figures(tmp_path / "figures.npz")


@pytest.mark.parametrize("damaged", [None, 3, [1], "swad", {"swad": 3}, {"swad": [1]}])
def test_what_is_no_finding_is_left_out(damaged: Any) -> None:
    assert findings_of({"findings": damaged}) == {}


# Whether a folder may hold a run


def test_an_empty_folder_and_the_same_settings_are_accepted(tmp_path: Path) -> None:
    refuse_other_configuration(tmp_path, configuration())
    trained_with(tmp_path, configuration())
    assert refuse_other_configuration(tmp_path, configuration()) == configuration()


def test_settings_without_effect_and_the_description_may_differ(tmp_path: Path) -> None:
    before = configuration(workers=2, log_every=10, checkpoint_every=5, figures=False)
    before["trained"]["summary"] = "other words"
    trained_with(tmp_path, before)
    refuse_other_configuration(tmp_path, configuration(workers=None, parallel="fsdp"))


def test_settings_without_effect_exist() -> None:
    assert flatten(recipe_to_json(find_recipe("demo"))).keys() >= NO_EFFECT_ON_SAME_DATA


TRACES = ["result.json", "checkpoints/000000100.0a1b.pt", "photo/result.json", "photo/best/1.0.pt"]


@pytest.mark.parametrize("trace", ["", "metrics.jsonl", *TRACES])
def test_only_what_was_trained_is_kept_from_other_settings(tmp_path: Path, trace: str) -> None:
    """A first try that failed before its first record is in nobody's way."""
    write_json(tmp_path / "config.json", configuration(batch_size=36))
    write_json(tmp_path / "photo/config.json", configuration(batch_size=36))
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert refuse_other_configuration(tmp_path, configuration(batch_size=48)) is None
    if not trace:
        return
    (tmp_path / trace).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / trace).write_text('{"kind": "train", "step": 50, "loss": 1.0}\n')
    with pytest.raises(ValueError, match=r"train\.batch_size was 36, is 48"):
        refuse_other_configuration(tmp_path, configuration(batch_size=48))
    same = configuration(batch_size=36)
    assert refuse_other_configuration(tmp_path, same) == same


def test_a_baseline_does_not_read_the_settings_of_batchformer(tmp_path: Path) -> None:
    def with_module(enabled: bool, **changes: Any) -> dict[str, Any]:
        config = configuration()
        config["trained"]["module"] |= {"enabled": enabled, **changes}
        return config

    trained_with(tmp_path / "baseline", with_module(enabled=False))
    other = with_module(enabled=False, lr_factor=0.5)
    other["trained"]["optim"]["module_weight_decay"] = 0.0
    assert refuse_other_configuration(tmp_path / "baseline", other) is not None
    with pytest.raises(ValueError, match=r"module\.enabled was False, is True"):
        refuse_other_configuration(tmp_path / "baseline", with_module(enabled=True))
    trained_with(tmp_path / "batchformer", with_module(enabled=True))
    with pytest.raises(ValueError, match=r"module\.lr_factor was .*, is 0\.5"):
        refuse_other_configuration(tmp_path / "batchformer", with_module(True, lr_factor=0.5))


def test_every_other_difference_is_named(tmp_path: Path) -> None:
    trained_with(tmp_path, configuration(batch_size=36))
    other = configuration(batch_size=48, updates=7)
    other["trained"]["data"] |= {"target": "photo", "root": "/elsewhere"}
    other["trained"]["weights"] = ""
    other["trained"]["depth"] = 3
    with pytest.raises(ValueError, match="with other settings") as refusal:
        refuse_other_configuration(tmp_path, other)
    words = str(refusal.value)
    for difference in (
        "data.root was None, is '/elsewhere'",
        "data.target was 'each', is 'photo'",
        "depth was None, is 3",
        "train.batch_size was 36, is 48",
        "train.updates was 10000, is 7",
        "weights was 'timm', is ''",
    ):
        assert difference in words
    assert words.count(" was ") == 6 and str(tmp_path) in words and "--runs" in words


def test_a_folder_of_another_seed_is_refused(tmp_path: Path) -> None:
    """A copy of a stopped run would continue as another seed from this seed's checkpoint."""
    trained_with(tmp_path, configuration())
    with pytest.raises(ValueError, match="with other settings: seed was 0, is 1"):
        refuse_other_configuration(tmp_path, {**configuration(), "seed": 1})


@pytest.mark.parametrize(
    ("there", "updates", "told"),
    [("", 6, True), ("link", 6, True), ("folder", 6, False), ("", 7, False)],
)
def test_after_the_data_was_moved_a_link_at_its_old_place_is_advised(
    tmp_path: Path, there: str, updates: int, told: bool
) -> None:
    old = tmp_path / "old"
    before, other = configuration(updates=6), configuration(updates=updates)
    before["trained"]["data"] |= {"root": str(old)}
    other["trained"]["data"] |= {"root": str(tmp_path / "new")}
    trained_with(tmp_path / "run", before)
    if there == "folder":
        old.mkdir()
    if there == "link":
        old.symlink_to(tmp_path / "new")
    with pytest.raises(ValueError, match="with other settings") as refusal:
        refuse_other_configuration(tmp_path / "run", other)
    assert (f"name it: --data.root {old}" in str(refusal.value)) == told


def test_files_are_read_without_torch() -> None:
    """Reports need no torch, and a job may be stopped before it is imported."""
    code = "import sys; from batchformer.lab.runs import cluster, folder, job, provenance\n"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
