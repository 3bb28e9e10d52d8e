"""A figure with its caption and its tables, and the HTML of such a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from batchformer.insight.figures.text import seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureTable:
    """A small table; every cell is text."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Caption:
    """The text below a figure, and the text that readers who cannot see it get instead."""

    note: str  # what is plotted and what to see, in at most four lines of a page
    alternative: str  # for readers who cannot see the figure
    details: str = ""  # the numbers and how they were measured, which a page folds away

    @classmethod
    def of(cls, kind: str, note: str, details: str = "", said: str = "") -> Caption:
        """A caption; its alternative adds the kind of plot and ``said``: what only eyes see."""
        parts = (kind, note, details, said)
        return cls(note, " ".join(part for part in parts if part), details)

    @property
    def text(self) -> str:
        """The note and the details."""
        return f"{self.note} {self.details}".rstrip()


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure that can be drawn, for a page, a file or a terminal.

    A page folds its ``tables`` away with the details of the caption. It leaves out
    ``terminal_tables``, which are long or can be read off the figure; a terminal prints all.
    """

    title: str
    caption: Caption
    draw: Callable[[], Figure]
    tables: Sequence[FigureTable] = ()
    terminal_tables: Sequence[FigureTable] = ()


def table_html(table: FigureTable) -> str:
    """The table for a page without its empty columns; "" where all columns are empty.

    Intervals stand below their numbers and the number of seeds below an arm, whose name may break:
    this keeps the table narrow.

    >>> table_html(FigureTable("Spread", ("arm", "few"), [("a<b", "0.9")])).count("a&lt;b")
    1
    """
    columns, rows = without_empty(table.columns, list(table.rows))
    if not columns:
        return ""
    first = 2 if columns[1:2] == ("n",) else 1
    columns = (columns[0], *columns[first:])
    body = [
        f'<tr><th scope="row">{escape(row[0]).replace("_", "_<wbr>")}'
        + "".join(f" <small>{seeds(int(cell))}</small>" for cell in row[1:first])
        + "</th>"
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[first:])
        + "</tr>"
        for row in rows
    ]
    return scrolling_table(table.caption, columns, body)


def scrolling_table(caption: str, columns: Sequence[str], rows: Sequence[str]) -> str:
    """Rows of markup below a header, in a region that scrolls where it is too wide."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join(rows)
    return (
        f'<div class="scroll runs" tabindex="0" role="region" aria-label="{escape(caption)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def without_empty(
    columns: tuple[str, ...], rows: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Leave out empty columns: there is no paper, or there are too few seeds for an interval."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return tuple(columns[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def _cell(text: str) -> str:
    number, space, bracket = text.partition(" [")
    return f"{escape(number)} <small>[{escape(bracket)}</small>" if space else escape(text)
