"""The sections of the page: figures of the catalogue, speed, sweeps, and pooled effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import NamedTuple

from batchformer.insight.figures.captioned import FigureTable, scrolling_table, table_html
from batchformer.insight.figures.catalogue import NETWORK_FIGURES
from batchformer.insight.page.html import Section, section_of
from batchformer.insight.page.insight_page import network_sections
from batchformer.lab.bench.table import Table, read_tables
from batchformer.lab.report.figures import forest, sweep
from batchformer.lab.report.figures.catalogue import FIGURES
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.pooling import PooledEffects
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.report.results.sweeps import SweepComparison
from batchformer.lab.report.results.tables import COLUMNS, effect_rows, pooled_headline

BENCH = "bench.json"  # the file that `batchformer bench` writes beside runs


def sections_of(group: RunGroup, prefix: str) -> list[Section]:
    """Every figure these runs have the numbers for; ``prefix`` keeps ids unique on the page."""
    found: list[Section] = []
    for name in FIGURES:
        try:
            found += _sections(name, group, prefix)
        except ValueError as error:
            # One network whose outputs are NaN must not prevent the page of all runs.
            reason = f"Not shown: {error}. Do the arrays of one of these runs hold NaN?"
            found.append(Section(name.replace("_", " ").capitalize(), "", reason))
    speed = speed_section(group)
    return found if speed is None else [*found, speed]


def _sections(name: str, group: RunGroup, prefix: str) -> list[Section]:
    """One figure, and after attention the explorer of batches; none if no run has the numbers."""
    if name in NETWORK_FIGURES:
        seen = network_sections(name, group, prefix)
        return [_naming_sub_runs(section, group) for section in seen]
    figure = FIGURES[name].of(group)
    return [] if figure is None else [section_of(figure, f"{prefix}-{name}")]


def _naming_sub_runs(section: Section, group: RunGroup) -> Section:
    """Say which trainings a figure shows, where each run consists of several."""
    parts = sorted({run.insight_part for run in group.runs} - {""})
    if not parts:
        return section
    seen = f"Seen in the part {', '.join(parts)} of each run."
    return replace(section, details=f"{section.details} {seen}".lstrip())


def speed_section(group: RunGroup) -> Section | None:
    """The tables of ``batchformer bench``, where its file lies beside the runs."""
    path = bench_beside(group.runs)
    if path is None:
        return None
    try:
        tables = read_tables(path)
    except ValueError as error:
        return Section("Speed", "", f"Not shown: {error}.")
    note = (
        "Measured by batchformer bench, not by these runs. Candidates of a table take turns in "
        "rounds; each number is a median over the rounds, with its quartiles in brackets, and "
        "ratios are of the same round."
    )
    return Section("Speed", tables_html(tables), note)


def sweep_section(found: SweepComparison, prefix: str) -> Section | None:
    """A sweep's metric by level; None if no run has finished."""
    figure = sweep.make(found)
    return None if figure is None else section_of(figure, f"{prefix}-levels")


# Tables of ``batchformer bench``.


def bench_beside(runs: Iterable[RecordedRun]) -> Path | None:
    """The ``bench.json`` in the folder of these runs' recipe, or in that of all recipes."""
    for level in (1, 2):  # runs/<recipe>/<arm>/seed<k>
        for run in runs:
            parents = run.folder.resolve().parents
            if len(parents) > level and (parents[level] / BENCH).is_file():
                return parents[level] / BENCH
    return None


def tables_html(tables: Sequence[Table]) -> str:
    """A closed ``<details>`` element for each table."""
    folds = []
    for table in tables:
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.texts())
        rows = [f"<tr>{row}</tr>" for row in cells]
        inside = scrolling_table(table.title, table.columns, rows) + "\n" if rows else ""
        notes = "".join(f"<li>{escape(note)}.</li>" for note in table.notes)
        folds.append(
            f"<details>\n<summary>{escape(table.title)}</summary>\n"
            f"<p><small>{escape(table.environment_line)}</small></p>\n{inside}"
            f'<ul class="notes">{notes}</ul>\n</details>'
        )
    return "\n".join(folds)


# Effects that are pooled over recipes.


class PooledPart(NamedTuple):
    """One arm against another over several recipes."""

    headline: str
    table: str
    sections: list[Section]


def pooled_parts(found: PooledEffects) -> list[PooledPart]:
    """Headline, table and forest plots of every arm."""
    parts = []
    for i, (arm, reference) in enumerate(found.pairs):
        effects = found.of(arm, reference)
        numbers = FigureTable(f"{arm} - {reference}, over recipes", COLUMNS, effect_rows(effects))
        drawn = [
            section_of(forest.make(arm, reference, metric, effect), f"pooled-{i + 1}-{metric}")
            for metric, effect in effects.items()
        ]
        headline = pooled_headline(arm, reference, effects)
        parts.append(PooledPart(headline, table_html(numbers), drawn))
    return parts
