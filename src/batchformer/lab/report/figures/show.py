"""Write one figure of some runs to a file, or print its numbers."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer.insight.figures.canvas import DOTS, INK
from batchformer.insight.figures.captioned import CaptionedFigure
from batchformer.insight.figures.catalogue import Entry
from batchformer.insight.files import write_atomically
from batchformer.insight.optional import extra
from batchformer.insight.record import FILE
from batchformer.lab.report.figures.catalogue import find_figure
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.report.results.tables import Terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

FORMATS = ("svg", "png", "pdf")

PRINT_INK = "#3f444b"
"""Text and axes on paper."""


def show(
    name: str,
    paths: Sequence[Path],
    *,
    to: Path | None = None,
    against: str | None = None,
    compute: Callable[[Path], object] | None = None,
    options: dict[str, Any] | None = None,
    console: Console | None = None,
) -> None:
    """Write a figure to a file, or print its numbers.

    Args:
        paths: folders of runs of one configuration.
        against: the arm to compare with, one of the runs' arms; None for that of
            :func:`one_group`.
        to: the file, .svg, .png or .pdf; None to print.
        compute: makes ``insight.npz`` of a run's folder, where it is needed and missing.
        options: options of the figure that are not left at their defaults.
    """
    entry = find_figure(name)
    given = options or {}
    foreign = [option for option in given if option not in entry.options]
    if foreign:
        known = ", ".join(_flag(o) for o in entry.options) or "none"
        wrong = ", ".join(map(_flag, foreign))
        raise ValueError(f"The figure {name} does not take {wrong}; its own options: {known}.")
    if to is not None and _format(to) not in FORMATS:
        raise ValueError(f"{to}: a figure is written as .svg, .png or .pdf.")
    group = one_group(find_runs(list(paths)), against)
    here = {run.arm for run in group.runs}
    for option, arm in (("--against", against), ("--arm", given.get("arm"))):
        if arm is not None and arm not in here:
            raise ValueError(
                f"{option} {arm}: no such run has finished here; arms: {', '.join(sorted(here))}."
            )
    if compute is not None and entry.needs == FILE:
        for run in group.runs:
            if not len(run.insight):
                print(f"Looking at {run.folder} ...", file=sys.stderr)
                compute(run.folder)
    if "cam_layer" in given:
        of_folder = given["cam_layer"]
        given = {**given, "cam_layer": lambda run: of_folder(run.folder / run.insight_part)}
    made = entry.of(group, **given)
    if made is None:
        raise ValueError(missing(name, entry, group, paths, tried=compute is not None))
    out = Terminal(console)
    out.say(f"{made.title}: {made.caption.text}")
    if to is None:
        for table in [*made.tables, *made.terminal_tables]:
            out.show(table.caption, table.columns, list(table.rows))
    else:
        write_figure(made, to)
        out.say(f"Figure: {to}")


def missing(
    name: str, entry: Entry, group: RunGroup, paths: Sequence[Path], *, tried: bool = False
) -> str:
    """Say what to do if no run has a figure's arrays; ``tried`` if they were to be computed."""
    text = f"{name} is drawn from {entry.needs}, and no run of {group.name} has the arrays for it"
    without = [run for run in group.runs if not len(run.insight)]
    if entry.needs != FILE:
        return f"{text}."
    # Detectors are never looked at: loading their runs would take minutes and give nothing.
    never = all(run.recipe.get("task") == "detection" for run in group.runs)
    if never or (len(without) == len(group.runs) and tried):
        return f"{text}. This figure does not exist for this recipe's method or images."
    if without and not tried:
        again = f"batchformer show {name} {' '.join(map(str, paths))} --compute"
        return (
            f"{text}. `{again}` makes the file from a run's checkpoint; runs trained from now on "
            f"write it when they end."
        )
    return (
        f"{text}, though some were looked at: the baseline has no BatchFormer to look at, and a "
        f"few figures are not made of every network."
    )


def write_figure(made: CaptionedFigure, path: Path) -> None:
    """Write the figure; the file is complete or not there.

    A PNG or SVG is transparent, with ink that is legible on white and on black; a PDF has
    darker ink for paper.
    """
    with extra("report"):
        import matplotlib

    drawn, kind = made.draw(), _format(path)
    said = made.caption.alternative
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Title": made.title, "Description": said, "Date": None},
        "png": {"Title": made.title, "Description": said},
        "pdf": {"Title": made.title, "Subject": said, "CreationDate": None},
    }
    if kind == "pdf":
        in_ink(drawn, PRINT_INK)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
        drawn.savefig(
            buffer, format=kind, transparent=kind != "pdf", dpi=DOTS, metadata=metadata[kind]
        )
    write_atomically(path, buffer.getvalue())


def in_ink(figure: Figure, colour: str) -> None:
    """Draw text, lines and axes in this colour instead of ink."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    for kind in (Text, Line2D):
        found: Any = figure.findobj(kind)
        for artist in found:
            if to_hex(artist.get_color()) == INK:
                artist.set_color(colour)
    for axes in figure.axes:
        axes.tick_params(colors=colour)
        for spine in axes.spines.values():
            spine.set_color(colour)


def _format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
