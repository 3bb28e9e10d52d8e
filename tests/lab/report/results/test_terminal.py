from __future__ import annotations

import io

from rich.console import Console

from batchformer.insight.figures.captioned import without_empty
from batchformer.lab.report.results.terminal import Terminal


def test_empty_columns_are_left_out() -> None:
    columns, rows = without_empty(("a", "b", "c"), [("1", "", ""), ("2", "", "3")])
    assert columns == ("a", "c") and rows == [("1", ""), ("2", "3")]


def test_text_is_printed_as_it_is() -> None:
    stream = io.StringIO()
    out = Terminal(Console(file=stream, width=40))
    out.say("[red]not markup[/red]")
    out.show("A table", ("level", "mean"), [("[b]1", "2.0")])
    text = stream.getvalue()
    assert "[red]not markup[/red]" in text and "[b]1" in text and "A table" in text
