"""A figure with what belongs to it: its words, and its numbers as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from batchformer.lab.report.results.terminal import without_empty
from batchformer.lab.report.results.words import seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Numbers:
    """A small table; every cell is text."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Words:
    """What a reader is told: below a figure, and in place of it where it cannot be seen."""

    note: str
    alternative: str


@dataclass(frozen=True)
class Shown:
    """A figure that can be drawn, for a page, a file or a terminal.

    Args:
        title: its heading.
        words: caption and alternative text.
        figure: draws it.
        numbers: its tables, which a page shows below it.
        folded: tables that a page does without: they are long, or read off the figure.
    """

    title: str
    words: Words
    figure: Callable[[], Figure]
    numbers: Sequence[Numbers] = ()
    folded: Sequence[Numbers] = ()


def numbers_html(numbers: Numbers) -> str:
    """The table for a page, less its empty columns; nothing where all of them are.

    To be narrow it has intervals below their numbers and the number of seeds below an arm, whose
    name may break.

    >>> numbers_html(Numbers("Spread", ("arm", "few"), [("a<b", "0.9")])).count("a&lt;b")
    1
    """
    columns, rows = without_empty(numbers.columns, list(numbers.rows))
    if not columns:
        return ""
    first = 2 if columns[1:2] == ("n",) else 1
    columns = (columns[0], *columns[first:])
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0]).replace("_", "_<wbr>")}'
        + "".join(f" <small>{seeds(int(cell))}</small>" for cell in row[1:first])
        + "</th>"
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[first:])
        + "</tr>"
        for row in rows
    )
    label = escape(numbers.caption, quote=True)
    return (
        f'<div class="scroll runs" tabindex="0" role="region" aria-label="{label}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _cell(text: str) -> str:
    number, space, bracket = text.partition(" [")
    return f"{escape(number)} <small>[{escape(bracket)}</small>" if space else escape(text)
