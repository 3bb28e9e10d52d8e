"""The tables of ``batchformer bench`` that lie beside the runs, for the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from batchformer.lab.bench.table import Table
from batchformer.lab.report.results.runs import RecordedRun

NAME = "bench.json"


def bench_beside(runs: Iterable[RecordedRun]) -> Path | None:
    """The ``bench.json`` in the folder of these runs' recipe, or in that of all recipes."""
    for level in (1, 2):  # runs/<recipe>/<arm>/seed<k>
        for run in runs:
            parents = run.folder.resolve().parents
            if len(parents) > level and (parents[level] / NAME).is_file():
                return parents[level] / NAME
    return None


def tables_html(tables: Sequence[Table]) -> str:
    """A closed ``<details>`` element for each table."""
    return "\n".join(_fold(table) for table in tables)


def _fold(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.texts()
    )
    notes = "".join(f"<li>{escape(note)}.</li>" for note in table.notes)
    label = escape(table.title, quote=True)
    inside = (
        f'<div class="scroll runs" tabindex="0" role="region" aria-label="{label}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>\n"
        if table.rows
        else ""
    )
    return (
        f"<details>\n<summary>{escape(table.title)}</summary>\n"
        f"<p><small>{escape(table.environment_line)}</small></p>\n{inside}"
        f'<ul class="notes">{notes}</ul>\n</details>'
    )
