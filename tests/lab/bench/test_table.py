"""Spreads, and tables that say the same in a terminal, in Markdown and in JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from batchformer.lab.bench.table import Spread, Table, read_tables


@pytest.fixture
def table() -> Table:
    place = {"machine": "Example", "dtype": "float32"}
    table = Table("step", "A step", ("mode", "N", "ms", "ratio"), place, notes=["Mind this"])
    table.add("plain | bare", 32, Spread(1.234, 1.1, 1.5, 9), None)
    table.add("ours", 2048, Spread(1234.5, 1200.0, 1300.0, 9), 0.5)
    return table


def test_json_markdown_and_the_terminal_have_every_cell(table: Table) -> None:
    assert Table.from_json(json.loads(json.dumps(table.as_json()))) == table
    lines = table.as_markdown().splitlines()
    assert lines[0] == "### A step" and "machine Example, dtype float32" in lines[2]
    assert lines[4:8] == [
        "| mode | N | ms | ratio |",
        "| --- | ---: | ---: | ---: |",
        "| plain \\| bare | 32 | 1.23 [1.10, 1.50] |  |",
        "| ours | 2048 | 1,234 [1,200, 1,300] | 0.5 |",
    ]
    assert "- Mind this." in lines
    out = io.StringIO()
    table.print(Console(file=out, width=100))
    for words in ("A step", "plain | bare", "1.23 [1.10, 1.50]", "1,234", "Note: Mind this."):
        assert words in out.getvalue()


def test_a_single_round_has_no_spread(table: Table) -> None:
    table.rows.clear()
    table.add("once", 1, Spread(2.0, 2.0, 2.0, 1), None)
    assert table.texts() == [("once", "1", "2.00", "")]


def test_cells_must_fit_the_columns(table: Table) -> None:
    with pytest.raises(ValueError, match="1 cells for the columns mode, N, ms, ratio"):
        table.add("alone")


def test_an_error_costs_what_it_measures_alone(table: Table) -> None:
    with table.attempt("N 4096"):
        raise RuntimeError("out of memory.\nlong story")
    assert table.notes[-1] == "N 4096 was not measured: out of memory"
    with pytest.raises(KeyboardInterrupt), table.attempt("N 8"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tables": [{"rows": []}]}'])
def test_other_files_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"bench\.json is not a file of `batchformer bench`"):
        read_tables(path)


def test_a_falling_change_swaps_the_quartiles() -> None:
    assert Spread(2.0, 1.0, 4.0, 5).map(lambda ms: 8 / ms) == Spread(4.0, 2.0, 8.0, 5)
