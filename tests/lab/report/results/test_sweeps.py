"""Sweeps: which runs belong to them, how levels are compared, and what is printed."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from batchformer.insight.intervals import summary
from batchformer.lab.metrics.intervals import holm, paired
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.report.results.sweep_tables import (
    level_difference_rows,
    level_rows,
    other_rows,
    print_sweep,
    sweep_headline,
    sweep_notes,
)
from batchformer.lab.report.results.sweeps import SweepComparison, level_of, split_sweeps
from helpers.run_folders import change_json, compared_sweep, recipe_of, write_run, write_sweep

SCORES = {0: {"all": 50.0}, 1: {"all": 51.0}}
BY_LEVEL = {("baseline", "1"): SCORES, ("batchformer", "1"): SCORES, ("batchformer", "10"): SCORES}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    levels = {"1": {"baseline": {"all": 41.0}}, "2": {}, "10": {"batchformer": {"all": 43.0}}}
    write_sweep(tmp_path / "runs", BY_LEVEL, levels=levels)
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
    "content",
    ["{", "[]", '{"name": "depth"}', '{"levels": 3}', "other reference", "other levels", ""],
)
def test_runs_without_a_description_that_fits_are_shown_apart(root: Path, content: str) -> None:
    path = root / "depth/sweep.json"
    described = json.loads(path.read_text())
    changes = {"other reference": {"reference": "9"}, "other levels": {"levels": {"1": {}}}}
    if content in changes:
        content = json.dumps(described | changes[content])
    path.write_text(content) if content else path.unlink()
    sweeps, others = split_sweeps(find_runs(root))
    assert sweeps == [] and len(others) == 7
    (remark,) = [remark for run in others for remark in run.remarks]
    lacks = "does not describe its levels" if content else "is not there"
    assert f"sweep.json {lacks}; its levels are shown apart" in remark


SHARED, ONE = ("baseline", "1"), ("batchformer", "1")
TWO, SIXTEEN = ("batchformer", "2"), ("batchformer", "16")
#: All of three seeds, by arm and level.
VALUES = {
    SHARED: [50.0, 51.0, 52.0],
    ONE: [52.0, 53.0, 54.0],
    TWO: [54.0, 55.0, 56.3],
    SIXTEEN: [52.5, 52.8, 54.0],
}
PAPER = {
    "1": {"baseline": {"all": 41.0}, "batchformer": {"all": 43.2, "few": 25.6}},
    "2": {"batchformer": {"all": 43.6}},
    "16": {},
}
TableOf = Callable[..., SweepComparison]


def scores(values: list[float]) -> dict[int, dict[str, float]]:
    return {s: {"all": v, "few": v - 30, "ece": 10 + 3 * s} for s, v in enumerate(values)}


@pytest.fixture
def table_of(tmp_path: Path) -> TableOf:
    def compare(values: Mapping[tuple[str, str], list[float]], **options: Any) -> SweepComparison:
        written = {cell: scores(each) for cell, each in values.items()}
        return compared_sweep(write_sweep(tmp_path, written, **options))

    return compare


@pytest.fixture
def found(table_of: TableOf) -> SweepComparison:
    return table_of(VALUES, levels=PAPER)


def test_every_cell_is_summed_up_over_its_seeds(found: SweepComparison) -> None:
    assert found.metric == "all" and found.metrics == ("all", "few", "ece")
    assert found.cells == list(VALUES)
    for cell, values in VALUES.items():
        for name in found.metrics:
            own = [one[name] for one in scores(values).values()]
            assert found.scores[cell, name].summary == summary(own, within=(0.0, 100.0))


def test_differences_are_paired_corrected_over_the_sweep_and_beside_those_of_the_paper(
    found: SweepComparison,
) -> None:
    assert list(found.to_reference) == [TWO, SIXTEEN]
    assert list(found.to_baseline) == [ONE, TWO, SIXTEEN]
    pairs = [(ONE, cell) for cell in (TWO, SIXTEEN)]
    pairs += [(SHARED, cell) for cell in (ONE, TWO, SIXTEEN)]
    expected = [paired(VALUES[before], VALUES[after]) for before, after in pairs]
    assert [difference.paired for difference in found.differences] == expected
    adjusted = [difference.adjusted for difference in found.differences]
    assert adjusted == holm([each.p_value for each in expected])
    assert (found.tested, found.compared) == (4, 5), "one difference has no spread"
    effects = [difference.paper_effect for difference in found.differences]
    assert effects == [pytest.approx(0.4), None, pytest.approx(2.2), pytest.approx(2.6), None]
    assert found.scores[("batchformer", "1"), "few"].paper == 25.6
    assert found.scores[("batchformer", "2"), "few"].paper is None
    assert not any("from level to level" in line for line in found.warnings)


def test_a_baseline_of_each_level_is_compared_with_at_that_level(tmp_path: Path) -> None:
    values = {
        ("baseline", "1"): [50.0, 50.6, 49.8],
        ("batchformer", "1"): [51.0, 51.9, 50.9],
        ("baseline", "2"): [48.0, 48.9, 47.7],
        ("batchformer", "2"): [51.4, 52.2, 51.5],
    }
    written = {cell: scores(each) for cell, each in values.items()}
    found = compared_sweep(write_sweep(tmp_path, written, baseline="each"))
    assert found.cells == list(values)
    assert list(found.to_reference) == [("baseline", "2"), ("batchformer", "2")]
    own = np.subtract(values["batchformer", "2"], values["baseline", "2"]).mean()
    assert found.to_baseline["batchformer", "2"].paired.difference == pytest.approx(own)
    falls = np.subtract(values["baseline", "2"], values["baseline", "1"]).mean()
    assert found.to_reference["baseline", "2"].paired.difference == pytest.approx(falls)


def test_only_shared_seeds_are_paired_and_the_rest_is_said(tmp_path: Path) -> None:
    values = {cell: scores(each) for cell, each in VALUES.items()}
    del values[TWO][1]
    values[SIXTEEN][0]["all"] = math.nan
    found = compared_sweep(write_sweep(tmp_path, values, levels=PAPER))
    assert found.to_reference[TWO].seeds == (0, 2)
    assert found.to_reference[SIXTEEN].seeds == (1, 2)
    said = " ".join(found.warnings)
    assert "batchformer at 2 has finished seeds 0, 2 of 0, 1, 2" in said
    assert "depth/16/batchformer/seed0: 'all' is nan" in said


def test_runs_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, {cell: scores(each) for cell, each in VALUES.items()})
    (folder / "16/batchformer/seed2/result.json").unlink()
    (folder / "2/batchformer/seed2/config.json").write_text("{")
    found = compared_sweep(folder)
    said = " ".join(found.left_out)
    assert "depth/16/batchformer/seed2 has not finished" in said and "is damaged" in said


def test_levels_are_tested_by_what_can_be_better(tmp_path: Path) -> None:
    values = {
        cell: {s: {"alignment": v / 100, "val": v + 9, "all": v} for s, v in enumerate(each)}
        for cell, each in VALUES.items()
    }
    found = compared_sweep(write_sweep(tmp_path / "both", values))
    assert (found.metric, found.metrics, found.compared) == ("all", ("all", "alignment", "val"), 5)
    assert any("neither more nor less is better: Alignment" in line for line in found.warnings)
    for cell in values.values():
        for one in cell.values():
            del one["all"]
    alone = compared_sweep(write_sweep(tmp_path / "alone", values))
    assert (alone.metric, alone.compared, alone.tested, len(alone.differences)) == (
        *("alignment", 0, 0, 5),
    )
    assert sweep_headline(alone).startswith("Alignment is not tested; a note says why.")
    assert sweep_notes(alone)[0] == "This sweep holds no comparison."


def test_remarks_on_the_data_are_said_once(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, {cell: scores(each) for cell, each in VALUES.items()})
    for path in folder.rglob("config.json"):
        change_json(path, data={"remarks": ["class ant has no test image"]})
    assert compared_sweep(folder).warnings.count("class ant has no test image") == 1


def test_no_reference_no_baseline_and_nothing_at_all(tmp_path: Path) -> None:
    levels = {"1": {}, "2": {}}
    values = {("batchformer", "2"): scores([50.0, 51.0, 52.0])}
    found = compared_sweep(write_sweep(tmp_path / "a", values, levels=levels))
    assert found.cells == [("batchformer", "2")] and found.differences == []
    folder = write_sweep(tmp_path / "b", values, levels=levels)
    for path in folder.rglob("result.json"):
        path.unlink()
    found = compared_sweep(folder)
    assert found.cells == [] and len(found.left_out) == 3


def test_a_level_of_two_configurations_is_named(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, {cell: scores(each) for cell, each in VALUES.items()})
    other = recipe_of("depth/2", module__layers="2", optim__lr=7.0)
    write_run(tmp_path, "batchformer", 3, recipe=other, scores={"all": 50.0})
    said = " ".join(compared_sweep(folder).warnings)
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
    warnings = "; ".join(compared_sweep(root).warnings)
    assert "Levels of this sweep that no run has finished: 256" in warnings
    assert "optim.lr 0.05 at 64, 0.1 at 128" in warnings
    assert "train.batch_size 64 at 64, 128 at 128" in warnings


def test_rows_by_hand(found: SweepComparison) -> None:
    # sd 1 over 3 seeds: 4.302653 / sqrt(3) to each side.
    assert level_rows(found)[:2] == [
        ("any", "baseline", "3", "51.00", "1.00", "[48.52, 53.48]", "41.0"),
        ("1", "batchformer", "3", "53.00", "1.00", "[50.52, 55.48]", "43.2"),
    ]
    # Differences 2, 2, 2.3: mean 2.1, sd 0.1732, 0.4303 to each side, t = 21, p = 0.0023.
    two, sixteen = level_difference_rows(found.to_reference)
    assert two[:5] == ("2", "batchformer", "+2.10", "[+1.67, +2.53]", "0.002")
    assert two[6:] == ("+0.4", "gain")
    # Differences 0.5, -0.2, 0: mean 0.1, sd 0.3606, 0.8957 to each side.
    assert sixteen[2:4] == ("+0.10", "[-0.80, +1.00]") and sixteen[6:] == ("", "not reliable")
    # ECE is 3 times the seed beside 10: mean 13, sd 3.
    assert other_rows(found)[1] == ("1", "batchformer", "23.00 ±1.00 (25.6)", "13.00 ±3.00")
    # 54, 55, 56.3 less 30: mean 25.1, sd sqrt((1.1**2 + 0.1**2 + 1.2**2) / 2) = 1.1533.
    assert other_rows(found)[2] == ("2", "batchformer", "25.10 ±1.15", "13.00 ±3.00")


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_and_says_what_was_corrected(found: SweepComparison, width: int) -> None:
    stream = io.StringIO()
    print_sweep(found, Console(file=stream, width=width))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for expected in (
        "depth Reliable after correction: level 2 +2.10 [+1.67, +2.53].",
        "In percentage points of All, compared with layers 1.",
        "All by layers",
        "All, difference to layers 1",
        "All, difference to the baseline",
        "This sweep holds 5 comparisons, 4 of them tested; Holm's p-values are corrected over",
        "Other metrics, mean ±sd over seeds, the paper's in brackets; not tested; lower is better "
        "for ECE",
    ):
        assert expected in words, expected


def test_headlines(table_of: TableOf) -> None:
    noise = table_of({ONE: [50.0, 51.0, 52.0], TWO: [51.0, 50.0, 52.5]}, name="noise")
    assert sweep_headline(noise) == (
        "No reliable difference: level 2 +0.17 [-2.42, +2.75]. In percentage points of All, "
        "compared with layers 1."
    )
    # Its interval leaves out 0, and Holm's correction over the sweep's five tests undoes it.
    values = {("baseline", "1"): [50.0, 51.0, 52.0], ONE: [50.1, 51.3, 51.9]}
    undone = table_of(
        values | {TWO: [51.0, 52.5, 53.6], ("batchformer", "4"): [50.9, 51.0, 52.4]}, name="undone"
    )
    text = sweep_headline(undone)
    assert undone.to_reference[TWO].outcome == "gain" and not undone.to_reference[TWO].significant
    assert (
        "Reliable only without correction: level 2 +1.27 [" in text
        and "of the sweep, it is not significant." in text
    )
    assert "No reliable difference: level 4 +0.33" in text
    few = table_of({ONE: [50.0, 51.0], TWO: [51.0, 50.0]}, name="few")
    assert "Too few seeds for a verdict on layers" in sweep_headline(few)
    assert [row[:4] for row in level_rows(few)] == [
        ("1", "batchformer", "2", "50.00, 51.00"),
        ("2", "batchformer", "2", "51.00, 50.00"),
    ]
    assert other_rows(few)[0] == ("1", "batchformer", "20.00, 21.00", "10.00, 13.00")
    alone = table_of({TWO: [51.0, 50.0]}, name="alone", levels={"1": {}, "2": {}})
    assert "No level shares a finished seed with layers 1" in sweep_headline(alone)


def test_every_cell_stays_on_one_line_of_100_columns(tmp_path: Path) -> None:
    numbers = {"many": 61.5, "medium": 45.1, "few": 25.6}
    levels = {name: {"batchformer": {"all": 51.1, **numbers}} for name in ("shared", "mixed_only")}
    scores = {"all": 51.1, **numbers, "ece": 12.5}
    written = {
        ("batchformer", level): {s: {k: v + 1.1 * s for k, v in scores.items()} for s in range(3)}
        for level in levels
    }
    folder = write_sweep(tmp_path, written, levels=levels, reference="shared")
    stream = io.StringIO()
    print_sweep(compared_sweep(folder), Console(file=stream, width=100))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "level arm Many Medium Few ECE" in lines
    expected = "62.60 ±1.10 (61.5) 46.20 ±1.10 (45.1) 26.70 ±1.10 (25.6) 13.60 ±1.10"
    assert f"mixed_only batchformer {expected}" in lines
