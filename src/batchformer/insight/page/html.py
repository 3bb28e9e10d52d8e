"""What self-contained pages share: templates, sections, and typographic minus signs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchformer.insight.figures.canvas import inline_svg
from batchformer.insight.figures.captioned import CaptionedFigure, table_html
from batchformer.insight.optional import extra

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Section:
    """One figure of a page; ``html`` is trusted markup without references to other files."""

    title: str
    html: str
    note: str


def section_of(figure: CaptionedFigure, ident: str) -> Section:
    """A figure and its tables for a page; its ids begin with ``ident``."""
    svg = inline_svg(figure.draw(), figure.caption.alternative, ident)
    tables = [table_html(table) for table in figure.tables]
    return Section(figure.title, "\n".join([svg, *tables]), figure.caption.note)


def environment(*packages: str) -> Environment:
    """Templates in the folder ``page`` of these packages, then of this one, and the filter typeset.

    ``base.html.jinja`` is a page without content: its head, its policy and the style of all pages.
    """
    with extra("report"):
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    folders = [PackageLoader(package, "page") for package in (*packages, "batchformer.insight")]
    made = Environment(
        loader=ChoiceLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["typeset"] = typeset
    return made


def typeset(text: str) -> str:
    """Hyphens that stand for a minus become one, and an interval stays on one line.

    >>> typeset("batchformer_self - baseline: -0.5 [-1.0, +0.1]").replace("\N{NO-BREAK SPACE}", "_")
    'batchformer_self − baseline: −0.5 [−1.0,_+0.1]'
    """
    text = re.sub(r"(?<![\w.])-(?=\d)|(?<= )-(?= )", "\N{MINUS SIGN}", text)
    return re.sub(r"(\[\S+,) (\S+\])", "\\1\N{NO-BREAK SPACE}\\2", text)
