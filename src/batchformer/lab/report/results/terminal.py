"""Text and tables on a terminal or through a pipe, 80 columns being enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchformer.insight.figures.captioned import without_empty
from batchformer.insight.optional import extra

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 120
"""Columns; 80 are enough for every cell to stay on one line."""
LEFT = frozenset({"metric", "level", "arm", "recipe", "verdict"})
Columns = tuple[str, ...]
Rows = list[tuple[str, ...]]


class Terminal:
    """Prints as text what is given as text: no markup, no highlights.

    Args:
        console: where to; by default the standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        with extra("lab"):
            from rich.console import Console as RichConsole

        self.console = console or RichConsole()
        self.width = min(self.console.width, WIDEST)

    def say(self, text: str, style: str = "") -> None:
        """Print a paragraph."""
        self.console.print(text, style=style, markup=False, highlight=False, width=self.width)

    def show(self, caption: str, columns: Columns, rows: Rows) -> None:
        """Print a table, less its empty columns."""
        with extra("lab"):
            from rich import box
            from rich.table import Table
            from rich.text import Text

        self.say(f"\n{caption}", "bold")
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        columns, rows = without_empty(columns, rows)
        for column in columns:
            table.add_column(column, justify="left" if column in LEFT else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        self.console.print(table, width=self.width)
