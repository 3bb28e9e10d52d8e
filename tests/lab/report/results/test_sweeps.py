from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.report.results.sweeps import level_of, split_sweeps
from run_folders import write_run, write_sweep

Writer = Callable[..., Path]
SCORES = {0: {"all": 50.0}, 1: {"all": 51.0}}
VALUES = {("baseline", "1"): SCORES, ("batchformer", "1"): SCORES, ("batchformer", "10"): SCORES}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    levels = {"1": {"baseline": {"all": 41.0}}, "2": {}, "10": {"batchformer": {"all": 43.0}}}
    write_sweep(tmp_path / "runs", VALUES, levels=levels)
    write_run(tmp_path / "runs", "baseline", 0)
    return tmp_path / "runs"


def test_a_sweep_is_found_from_every_folder_above_its_runs(root: Path) -> None:
    for path, count in ((root, 6), (root / "depth", 6), (root / "depth/10", 2)):
        sweeps, others = split_sweeps(find_runs(path))
        assert [len(sweep.runs) for sweep in sweeps] == [count]
        assert [run.name for run in others] == (["tail/baseline/seed0"] if path == root else [])
    (only,), _ = split_sweeps(find_runs(root / "depth/10/batchformer/seed1"))
    assert only.levels == ["10"] and level_of(only.runs[0]) == "10"


def test_levels_keep_the_order_of_the_sweep_and_those_without_runs_are_left_out(root: Path) -> None:
    (sweep,), _ = split_sweeps(find_runs(root))
    assert sweep.levels == ["1", "10"] and sweep.arms == ["baseline", "batchformer"]
    assert [run.seed for run in sweep.of("batchformer", "10")] == [0, 1]
    assert sweep.baseline_of("10") == ("baseline", "1")
    assert sweep.paper["10"]["batchformer"]["all"] == 43.0


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"name": "depth"}', '{"levels": 3}', "other reference", "other levels"]
)
def test_runs_without_a_description_that_fits_are_shown_apart(root: Path, content: str) -> None:
    path = root / "depth/sweep.json"
    described = json.loads(path.read_text())
    changes = {"other reference": {"reference": "9"}, "other levels": {"levels": {"1": {}}}}
    if content in changes:
        content = json.dumps(described | changes[content])
    path.write_text(content)
    sweeps, others = split_sweeps(find_runs(root))
    assert sweeps == [] and len(others) == 7
    remarks = [remark for run in others for remark in run.remarks]
    assert len(remarks) == 1 and "does not describe its levels" in remarks[0]


def test_levels_whose_description_is_gone_are_shown_apart_and_it_is_said(root: Path) -> None:
    (root / "depth/sweep.json").unlink()
    sweeps, others = split_sweeps(find_runs(root))
    assert sweeps == [] and len(others) == 7
    (remark,) = [remark for run in others for remark in run.remarks]
    assert "sweep.json is not there; its levels are shown apart" in remark
