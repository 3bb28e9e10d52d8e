"""The figures of a recipe's part of the page. A further figure is one line in ``SECTIONS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from batchformer.lab.bench.table import read_tables
from batchformer.lab.metrics.intervals import FEWEST_SEEDS
from batchformer.lab.report.figures.canvas import inline_svg
from batchformer.lab.report.figures.catalogue import FIGURES
from batchformer.lab.report.figures.shown import Shown, numbers_html
from batchformer.lab.report.figures.sweep_figure import described, sweep_figure
from batchformer.lab.report.page.speed import bench_beside, tables_html
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import metric_label
from batchformer.lab.report.results.sweeps import SweepComparison


@dataclass(frozen=True)
class Section:
    """One figure of the page.

    Args:
        title: its heading.
        html: the figure itself, trusted markup without references to other files.
        note: what is plotted and over how many seeds.
    """

    title: str
    html: str
    note: str


#: Figures of networks that were looked at.
LOOKED_AT = ("reliability", "influence", "attention", "features", "cam")


def section_of(made: Shown | None, ident: str) -> Section | None:
    """A figure and its tables for the page; ``ident`` begins its ids."""
    if made is None:
        return None
    svg = inline_svg(made.figure(), made.words.alternative, ident)
    tables = [numbers_html(table) for table in made.numbers]
    return Section(made.title, "\n".join([svg, *tables]), made.words.note)


def drawn(name: str) -> Callable[[RunGroup, str], Section | None]:
    """What makes the section of a figure by its name in the catalogue."""

    def make(group: RunGroup, prefix: str) -> Section | None:
        made = section_of(FIGURES[name].load()(group), f"{prefix}-{name}")
        return of_a_part(made, group) if name in LOOKED_AT else made

    return make


def explorer(group: RunGroup, prefix: str) -> Section | None:
    """Batches to look into, where they were kept."""
    from batchformer.lab.report.page.explorer import explorer_section

    return of_a_part(explorer_section(group, prefix), group)


def of_a_part(section: Section | None, group: RunGroup) -> Section | None:
    """Say of which trainings a figure is, where runs consist of several."""
    parts = sorted({run.insight_part for run in group.runs} - {""})
    if section is None or not parts:
        return section
    return replace(section, note=f"{section.note} Seen in the part {', '.join(parts)} of each run.")


def speed_section(group: RunGroup, prefix: str) -> Section | None:
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
    if not found.cells:
        return None
    sweep = found.sweep
    label = metric_label(found.metric)
    note = (
        f"{label} by {sweep.factor}: small dots are seeds, larger marks their means, bars the "
        f"95% t intervals of the means, where there are {FEWEST_SEEDS} seeds"
    )
    if sweep.shared_baseline:
        note += "; the broken line and its band are the baseline, which no level changes"
    if any(score.paper is not None for score in found.scores.values()):
        note += "; dotted, with hollow marks, the paper's numbers"
    note += ". Levels stand at equal distances."
    description = f"Dot plot. {note} {described(found)}."
    return Section(
        f"{label} by {sweep.factor}",
        inline_svg(sweep_figure(found), description, f"{prefix}-levels"),
        note,
    )


SECTIONS: tuple[Callable[[RunGroup, str], Section | None], ...] = (
    drawn("training"),
    drawn("choice"),
    drawn("classes"),
    drawn("head_tail"),
    drawn("reliability"),
    drawn("influence"),
    drawn("attention"),
    explorer,
    drawn("features"),
    drawn("cam"),
    drawn("bias"),
    drawn("convergence"),
    speed_section,
)
"""What is drawn for a group of runs, in this order; None leaves a figure out."""


def sections_of(group: RunGroup, prefix: str) -> list[Section]:
    """Every figure these runs have the numbers for; ``prefix`` keeps ids unique on the page."""
    made = (make(group, prefix) for make in SECTIONS)
    return [section for section in made if section is not None]
