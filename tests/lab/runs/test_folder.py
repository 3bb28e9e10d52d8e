"""The files of a run's folder: written whole, read back, and not mixed with others."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.folder import (
    has_result,
    read_result,
    recipe_to_json,
    recorded,
    refuse_other_configuration,
    write_figures,
    write_json,
    write_result,
)


def configuration(**train: Any) -> dict[str, Any]:
    recipe = find_recipe("pacs_coral")
    changed = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **train))
    return {"arm": "baseline", "seed": 0, "trained": recipe_to_json(changed)}


def test_what_is_recorded(tmp_path: Path) -> None:
    assert recorded(tmp_path) is None and recorded(tmp_path / "nowhere") is None
    write_json(tmp_path / "config.json", configuration())
    assert recorded(tmp_path) == configuration()


def test_an_empty_folder_and_the_same_settings_are_accepted(tmp_path: Path) -> None:
    refuse_other_configuration(tmp_path, configuration())
    trained_with(tmp_path, configuration())
    assert refuse_other_configuration(tmp_path, configuration()) == configuration()


def test_settings_of_no_effect_may_differ(tmp_path: Path) -> None:
    trained_with(tmp_path, configuration(workers=2))
    refuse_other_configuration(tmp_path, configuration(workers=None))


def trained_with(folder: Path, config: dict[str, Any]) -> None:
    """A folder in which this was trained for a while."""
    write_json(folder / "config.json", config)
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 50, "loss": 1.0}\n')


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


def test_every_other_difference_is_named(tmp_path: Path) -> None:
    trained_with(tmp_path, configuration(batch_size=36))
    other = configuration(batch_size=48, updates=7)
    other["trained"]["data"]["target"] = "photo"
    other["trained"]["weights"] = ""
    with pytest.raises(ValueError, match="with other settings") as refusal:
        refuse_other_configuration(tmp_path, other)
    words = str(refusal.value)
    for difference in (
        "data.target was each, is photo",
        "train.batch_size was 36, is 48",
        "train.updates was 10000, is 7",
        "weights was timm, is ",
    ):
        assert difference in words
    assert words.count(" was ") == 4 and str(tmp_path) in words and "--runs" in words


def test_a_record_from_before_a_setting_existed_has_its_default(tmp_path: Path) -> None:
    old = copy.deepcopy(configuration())
    del old["trained"]["hyper"]["swad"], old["trained"]["data"]["memory"]
    trained_with(tmp_path, old)
    refuse_other_configuration(tmp_path, configuration())
    changed = configuration()
    changed["trained"]["hyper"]["swad"] = True
    with pytest.raises(ValueError, match=r"hyper\.swad was False, is True"):
        refuse_other_configuration(tmp_path, changed)


def test_a_record_of_another_version_is_compared_as_it_is(tmp_path: Path) -> None:
    old = configuration()
    old["trained"]["depth"] = 3
    trained_with(tmp_path, old)
    with pytest.raises(ValueError, match="depth was 3, is None"):
        refuse_other_configuration(tmp_path, configuration())


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


def test_a_result_with_nan_as_earlier_versions_wrote_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"metrics": {"all": 50.5, "few": NaN}}')
    metrics = read_result(tmp_path)["metrics"]
    assert metrics["all"] == 50.5 and math.isnan(metrics["few"])


def test_figures_come_back(tmp_path: Path) -> None:
    figures = {"per_class": np.array([1.0, np.nan]), "classes": np.array(["ant", "bee"])}
    write_figures(tmp_path / "figures.npz", figures)
    with np.load(tmp_path / "figures.npz", allow_pickle=False) as found:
        assert set(found.files) == set(figures)
        np.testing.assert_array_equal(found["per_class"], figures["per_class"])
        assert found["classes"].tolist() == ["ant", "bee"]
    assert [path.name for path in tmp_path.iterdir()] == ["figures.npz"]
