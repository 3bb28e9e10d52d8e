"""What SWAD averaged: a row for every arm and target, over seeds, from results or records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batchformer.lab.report.figures import earlier
from batchformer.lab.report.figures.training import valley_table, valleys
from batchformer.lab.report.page.html import render
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs, read_run

Writer = Callable[..., Path]


def valley(first: int, last: int, **more: Any) -> dict[str, Any]:
    evaluations = {"first_evaluation": 1 + first // 100, "last_evaluation": last // 100}
    values = {"updates": last - first + 1, "first_update": first, "last_update": last}
    return {"converged": True, **values, **evaluations, **more}


def put_in_result(folder: Path, findings: Any) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "findings": findings}))


def test_a_row_for_every_arm_over_its_seeds(write_run: Writer, runs_root: Path) -> None:
    put_in_result(write_run("baseline", 0), {"swad": valley(101, 300)})
    put_in_result(write_run("baseline", 1), {"swad": valley(1, 300, converged=False)})
    put_in_result(write_run("batchformer", 0), {"swad": valley(1001, 2400)})
    table = valley_table(one_group(find_runs(runs_root)))
    assert table is not None
    evaluations = ("first evaluation", "last evaluation")
    columns = ("arm", "n", "target", "first update", "last update", *evaluations, "converged")
    assert table.columns == columns and list(table.rows) == [
        ("baseline", "2", "", "1 to 101", "300", "1 to 2", "3", "1 of 2"),
        ("batchformer", "1", "", "1,001", "2,400", "11", "24", "1 of 1"),
    ]


def test_a_row_for_every_target(write_run: Writer, runs_root: Path) -> None:
    whole = {"photo/swad": valley(1, 200), "sketch/swad": valley(101, 400), "photo/other": {}}
    put_in_result(write_run("baseline", 0), whole)
    # Without where the evaluations were.
    short = {"updates": 200, "converged": True, "first_update": 101, "last_update": 300}
    folder = write_run("baseline", 1)
    put_in_result(folder, {"photo/swad": short, "sketch/swad": short})
    assert valleys(read_run(folder)) == {"photo": short, "sketch": short}
    table = valley_table(one_group(find_runs(runs_root)))
    assert table is not None and list(table.rows) == [
        ("baseline", "2", "photo", "1 to 101", "200 to 300", "1", "2", "2 of 2"),
        ("baseline", "2", "sketch", "101", "300 to 400", "2", "4", "2 of 2"),
    ]


def test_the_page_and_the_figure_have_it_below_the_curves(
    write_run: Writer, runs_root: Path
) -> None:
    folder = write_run("baseline", 0)
    before = earlier.training(one_group(find_runs(runs_root)))
    assert before is not None and not before.numbers and "SWAD" not in before.words.note
    assert "first evaluation" not in render(find_runs(runs_root))
    put_in_result(folder, {"swad": valley(1001, 2400)})
    after = earlier.training(one_group(find_runs(runs_root)))
    assert after is not None and len(after.numbers) == 1 and "SWAD averages" in after.words.note
    page = render(find_runs(runs_root))
    assert "first evaluation" in page and "<td>1,001</td>" in page and "target</th>" not in page


def test_runs_without_swad_or_with_damage_have_none(write_run: Writer, runs_root: Path) -> None:
    folder = write_run("baseline", 0)
    for damaged in (None, [3], {"swad": "deep"}):
        put_in_result(folder, damaged)
        assert valleys(read_run(folder)) == {}
    put_in_result(folder, {"swad": {"first_update": "early"}})
    table = valley_table(one_group(find_runs(runs_root)))
    assert table is not None
    assert list(table.rows) == [("baseline", "1", "", "", "", "", "", "0 of 1")]
