from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from batchformer.lab.metrics.intervals import holm
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.report.results.sweeps import SweepComparison, compare_sweep, split_sweeps
from batchformer.lab.report.results.tables import sweep_headline, sweep_notes
from run_folders import recipe_of, write_run, write_sweep

Writer = Callable[..., Path]

#: All of four seeds, by arm and level.
ALL = {
    ("baseline", "1"): [50.0, 50.6, 49.8, 50.4],
    ("batchformer", "1"): [51.0, 51.9, 50.9, 51.2],
    ("batchformer", "2"): [51.4, 52.2, 51.5, 51.9],
    ("batchformer", "4"): [50.2, 51.8, 51.9, 50.1],
}
PAPER = {
    "1": {"baseline": {"all": 41.0, "few": 18.0}, "batchformer": {"all": 43.2, "few": 25.6}},
    "2": {"batchformer": {"all": 43.6}},
    "4": {},
}


def scores(values: list[float]) -> dict[int, dict[str, float]]:
    return {s: {"all": v, "few": v - 30, "ece": 60 - v} for s, v in enumerate(values)}


def compared(root: Path) -> SweepComparison:
    (sweep,), _ = split_sweeps(find_runs(root))
    return compare_sweep(sweep)


@pytest.fixture
def found(tmp_path: Path) -> SweepComparison:
    values = {cell: scores(each) for cell, each in ALL.items()}
    return compared(write_sweep(tmp_path, values, levels=PAPER))


def test_means_and_intervals_are_those_of_scipy(found: SweepComparison) -> None:
    assert found.metric == "all" and found.metrics == ("all", "few", "ece")
    assert found.cells == list(ALL)
    for cell, values in ALL.items():
        summary = found.scores[cell, "all"].summary
        low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
        assert summary.mean == pytest.approx(np.mean(values))
        assert (summary.low, summary.high) == (pytest.approx(low), pytest.approx(high))
        assert found.scores[cell, "few"].summary.mean == pytest.approx(np.mean(values) - 30)
        error = found.scores[cell, "ece"].summary
        assert error.mean == pytest.approx(60 - np.mean(values))
        assert error.sd == pytest.approx(np.std(values, ddof=1))


def test_differences_are_paired_and_corrected_over_the_sweep(found: SweepComparison) -> None:
    reference, baseline = ALL["batchformer", "1"], ALL["baseline", "1"]
    pairs = [(reference, ALL["batchformer", level]) for level in ("2", "4")]
    pairs += [(baseline, ALL["batchformer", level]) for level in ("1", "2", "4")]
    tests = [stats.ttest_rel(after, before) for before, after in pairs]
    assert list(found.to_reference) == [("batchformer", "2"), ("batchformer", "4")]
    assert list(found.to_baseline) == [("batchformer", level) for level in ("1", "2", "4")]
    adjusted = holm([test.pvalue for test in tests])
    assert found.tested == len(found.differences) == 5
    for difference, test, p, (before, after) in zip(
        found.differences, tests, adjusted, pairs, strict=True
    ):
        result, interval = difference.paired, test.confidence_interval(0.95)
        assert result.difference == pytest.approx(np.mean(after) - np.mean(before))
        assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
        assert result.p_value == pytest.approx(test.pvalue)
        assert difference.adjusted == pytest.approx(p)


def test_the_papers_effects_are_level_less_reference_and_level_less_baseline(
    found: SweepComparison,
) -> None:
    effects = [difference.paper_effect for difference in found.differences]
    assert effects == [pytest.approx(0.4), None, pytest.approx(2.2), pytest.approx(2.6), None]
    assert found.scores[("batchformer", "1"), "few"].paper == 25.6
    assert found.scores[("batchformer", "2"), "few"].paper is None


def test_a_baseline_of_each_level_is_compared_with_at_that_level(tmp_path: Path) -> None:
    values = {
        ("baseline", "1"): [50.0, 50.6, 49.8],
        ("batchformer", "1"): [51.0, 51.9, 50.9],
        ("baseline", "2"): [48.0, 48.9, 47.7],
        ("batchformer", "2"): [51.4, 52.2, 51.5],
    }
    written = {cell: scores(each) for cell, each in values.items()}
    found = compared(write_sweep(tmp_path, written, baseline="each"))
    assert found.cells == list(values)
    assert list(found.to_reference) == [("baseline", "2"), ("batchformer", "2")]
    own = np.subtract(values["batchformer", "2"], values["baseline", "2"]).mean()
    assert found.to_baseline["batchformer", "2"].paired.difference == pytest.approx(own)
    falls = np.subtract(values["baseline", "2"], values["baseline", "1"]).mean()
    assert found.to_reference["baseline", "2"].paired.difference == pytest.approx(falls)


def test_only_shared_seeds_are_paired_and_the_rest_is_said(tmp_path: Path) -> None:
    values = {cell: scores(each) for cell, each in ALL.items()}
    del values["batchformer", "2"][1]
    values["batchformer", "4"][0]["all"] = math.nan
    found = compared(write_sweep(tmp_path, values, levels=PAPER))
    assert found.to_reference["batchformer", "2"].seeds == (0, 2, 3)
    assert found.to_reference["batchformer", "4"].seeds == (1, 2, 3)
    said = " ".join(found.warnings)
    assert "batchformer at 2 has finished seeds 0, 2, 3 of 0, 1, 2, 3" in said
    assert "depth/4/batchformer/seed0: 'all' is nan" in said


def test_runs_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, {cell: scores(each) for cell, each in ALL.items()})
    (folder / "4/batchformer/seed3/result.json").unlink()
    (folder / "2/batchformer/seed3/config.json").write_text("{")
    found = compared(folder)
    said = " ".join(found.left_out)
    assert "depth/4/batchformer/seed3 has not finished" in said and "is damaged" in said


def test_levels_are_tested_by_what_can_be_better(tmp_path: Path) -> None:
    values = {
        cell: {s: {"alignment": v / 100, "all": v} for s, v in enumerate(each)}
        for cell, each in ALL.items()
    }
    found = compared(write_sweep(tmp_path / "both", values))
    assert (found.metric, found.metrics, found.compared) == ("all", ("all", "alignment"), 5)
    assert any("neither more nor less is better: Alignment" in line for line in found.warnings)
    for cell in values.values():
        for one in cell.values():
            del one["all"]
    alone = compared(write_sweep(tmp_path / "alone", values))
    assert (alone.metric, alone.compared, alone.tested, len(alone.differences)) == (
        *("alignment", 0, 0, 5),
    )
    assert sweep_headline(alone).startswith("Alignment describes features and is not tested")
    assert sweep_notes(alone)[0] == "This sweep holds no comparison."


def test_remarks_on_the_data_are_said_once(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, {cell: scores(each) for cell, each in ALL.items()})
    for path in folder.rglob("config.json"):
        config = json.loads(path.read_text())
        config["data"]["remarks"] = ["class ant has no test image"]
        path.write_text(json.dumps(config))
    assert compared(folder).warnings.count("class ant has no test image") == 1


def test_no_reference_no_baseline_and_nothing_at_all(tmp_path: Path) -> None:
    levels = {"1": {}, "2": {}}
    values = {("batchformer", "2"): scores([50.0, 51.0, 52.0])}
    found = compared(write_sweep(tmp_path / "a", values, levels=levels))
    assert found.cells == [("batchformer", "2")] and found.differences == []
    folder = write_sweep(tmp_path / "b", values, levels=levels)
    for path in folder.rglob("result.json"):
        path.unlink()
    found = compared(folder)
    assert found.cells == [] and len(found.left_out) == 3


def test_a_level_of_two_configurations_is_named(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, {cell: scores(each) for cell, each in ALL.items()})
    other = recipe_of("depth/2", module__layers="2", optim__lr=7.0)
    write_run(tmp_path, "batchformer", 3, recipe=other, scores={"all": 50.0})
    said = " ".join(compared(folder).warnings)
    assert "The runs of level 2 do not have one configuration" in said
    assert "level 1" not in said


def test_levels_without_runs_and_what_else_changes_are_said(tmp_path: Path) -> None:
    """The learning rate goes with the batch size: a reader must not take one for the other."""
    root = write_sweep(
        tmp_path,
        {("batchformer", "64"): scores([50.0, 51.0])},
        reference="64",
        levels={"64": {}, "128": {}, "256": {}},
    )
    recipes = {
        level: recipe_of(f"depth/{level}", train__batch_size=int(level), optim__lr=rate)
        for level, rate in (("64", 0.05), ("128", 0.1))
    }
    for recipe in recipes.values():
        for seed in range(2):
            write_run(tmp_path, "batchformer", seed, recipe=recipe, scores={"all": 50.0 + seed})
    warnings = "; ".join(compared(root).warnings)
    assert "Levels of this sweep that no run has finished: 256" in warnings
    assert "optim.lr 0.05 at 64, 0.1 at 128" in warnings
    assert "train.batch_size 64 at 64, 128 at 128" in warnings


def test_one_setting_that_changes_is_the_sweep_itself(found: SweepComparison) -> None:
    assert not any("from level to level" in line for line in found.warnings)
