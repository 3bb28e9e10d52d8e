"""The tables of the benchmark on the page, where they lie beside the runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchformer.insight.page.html import Section
from batchformer.lab.bench.run import save
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.report.page.html import render
from batchformer.lab.report.page.sections import speed_section
from batchformer.lab.report.page.speed import bench_beside, tables_html
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


@pytest.fixture
def table() -> Table:
    table = Table("loop", "Loop <fast> & small", ("update", "ms"), {"machine": "A & B"})
    table.add("bare", Spread(1.0, 0.5, 2.0, 3))
    table.notes.append("1 < 2")
    return table


def speed(runs_root: Path) -> Section | None:
    return speed_section(one_group(find_runs(runs_root)))


def test_only_where_a_file_lies_beside_the_runs(
    write_run: Writer, runs_root: Path, table: Table
) -> None:
    write_run("baseline", 0)
    assert speed(runs_root) is None
    save(runs_root, [table])
    section = speed(runs_root)
    assert section is not None
    assert "Loop &lt;fast&gt; &amp; small" in section.html and "1.00 [0.5, 2.00]" in section.html
    assert "A &amp; B" in section.html and "1 &lt; 2." in section.html
    assert "median" in section.note
    assert section.html in render(find_runs(runs_root))


def test_the_recipes_own_file_comes_first(write_run: Writer, runs_root: Path, table: Table) -> None:
    write_run("baseline", 0)
    save(runs_root, [table])
    save(runs_root / "tail", [table, table])
    assert bench_beside(find_runs(runs_root)) == (runs_root / "tail/bench.json").resolve()
    section = speed(runs_root)
    assert section is not None and section.html == tables_html([table, table])


def test_a_damaged_file_is_named(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    (runs_root / "bench.json").write_text("{")
    section = speed(runs_root)
    assert section is not None
    assert section.html == "" and "bench.json is not a file of" in section.note


def test_a_part_that_failed_is_a_fold_without_a_table() -> None:
    failed = Table("step", "step", (), {}, notes=["RuntimeError: no"], failed=True)
    found = tables_html([failed])
    assert "<table>" not in found and "RuntimeError: no." in found
