"""The tables of the benchmark on the page, where they lie beside the runs."""

from __future__ import annotations

import pytest

from batchformer.insight.page.html import Section
from batchformer.lab.bench.run import save
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.report.page.html import render
from batchformer.lab.report.page.sections import bench_beside, speed_section, tables_html
from helpers.run_folders import RunTree
from helpers.simulated_networks import known


@pytest.fixture
def table() -> Table:
    table = Table("loop", "Loop <fast> & small", ("update", "ms"), {"machine": "A & B"})
    table.add("bare", Spread(1.0, 0.5, 2.0, 3))
    table.notes.append("1 < 2")
    return table


def speed(tree: RunTree) -> Section:
    return known(speed_section(tree.group()))


def test_only_where_a_file_lies_beside_the_runs(tree: RunTree, table: Table) -> None:
    folder = tree.write("baseline", 0)
    (folder / "figures.npz").unlink()
    (folder / "metrics.jsonl").write_text("")
    assert speed_section(tree.group()) is None
    save(tree.root, [table])
    section = speed(tree)
    assert "Loop &lt;fast&gt; &amp; small" in section.html and "1.00 [0.5, 2.00]" in section.html
    assert "A &amp; B" in section.html and "1 &lt; 2." in section.html
    assert "median" in section.note
    assert section.html in render(tree.runs())


def test_the_recipes_own_file_comes_first(tree: RunTree, table: Table) -> None:
    tree.write("baseline", 0)
    save(tree.root, [table])
    save(tree.root / "tail", [table, table])
    assert bench_beside(tree.runs()) == (tree.root / "tail/bench.json").resolve()
    assert speed(tree).html == tables_html([table, table])


def test_a_damaged_file_is_named(tree: RunTree) -> None:
    tree.write("baseline", 0)
    (tree.root / "bench.json").write_text("{")
    section = speed(tree)
    assert section.html == "" and "bench.json is not a file of" in section.note


def test_a_part_that_failed_is_a_fold_without_a_table() -> None:
    failed = Table("step", "step", (), {}, notes=["RuntimeError: no"], failed=True)
    found = tables_html([failed])
    assert "<table>" not in found and "RuntimeError: no." in found
