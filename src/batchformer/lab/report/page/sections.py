"""The sections of a recipe's or a sweep's part of the page, in the order of the catalogue."""

from __future__ import annotations

from dataclasses import replace

from batchformer.insight.figures.catalogue import NETWORK_FIGURES
from batchformer.insight.page.html import Section, section_of
from batchformer.insight.page.insight_page import network_sections
from batchformer.lab.bench.table import read_tables
from batchformer.lab.report.figures import sweep
from batchformer.lab.report.figures.catalogue import FIGURES
from batchformer.lab.report.page.speed import bench_beside, tables_html
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.sweeps import SweepComparison


def sections_of(group: RunGroup, prefix: str) -> list[Section]:
    """Every figure these runs have the numbers for; ``prefix`` keeps ids unique on the page."""
    found: list[Section] = []
    for name, entry in FIGURES.items():
        if name in NETWORK_FIGURES:
            seen = network_sections(name, group, prefix)
            found += [_naming_sub_runs(section, group) for section in seen]
        elif (figure := entry.load()(group)) is not None:
            found.append(section_of(figure, f"{prefix}-{name}"))
    speed = speed_section(group)
    return found if speed is None else [*found, speed]


def _naming_sub_runs(section: Section, group: RunGroup) -> Section:
    """Say which trainings a figure shows, where each run consists of several."""
    parts = sorted({run.insight_part for run in group.runs} - {""})
    if not parts:
        return section
    return replace(section, note=f"{section.note} Seen in the part {', '.join(parts)} of each run.")


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
    """A sweep's metric against its levels, where a run has finished."""
    figure = sweep.make(found)
    return None if figure is None else section_of(figure, f"{prefix}-levels")
