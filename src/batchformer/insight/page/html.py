"""What self-contained pages share: templates, sections, and typographic minus signs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer.insight.figures.canvas import inline_svg
from batchformer.insight.figures.captioned import CaptionedFigure, table_html
from batchformer.insight.optional import extra

if TYPE_CHECKING:
    from jinja2 import Environment


COLUMN = 486  # pixels of a figure in one of two columns
ENDS_TOGETHER = 150.0  # pixels by which columns may differ before figures change places
EMPTY = 250.0  # pixels by which they may differ before the last figure gets a row of its own


@dataclass(frozen=True)
class Section:
    """One figure of a page."""

    title: str
    html: str  # trusted markup without references to other files
    note: str  # the caption
    details: str = ""  # further text, which is folded away
    tables: str = ""  # trusted markup, which is folded away with it
    wide: bool = False  # it has a row of its own, as wide as the page


def section_of(figure: CaptionedFigure, ident: str) -> Section:
    """A figure and its tables for a page; its ids begin with ``ident``."""
    svg = inline_svg(figure.draw(), figure.caption.alternative, ident)
    tables = "\n".join(filter(None, map(table_html, figure.tables)))
    return Section(figure.title, svg, figure.caption.note, figure.caption.details, tables)


def in_blocks(sections: Sequence[Section]) -> list[list[Section]]:
    """Group sections into those that share two columns and those with a row of their own.

    A wide section has its own row: above the columns if it comes first, else below them. So does
    the last other section if columns would not end together, as with three figures of one size.
    """
    narrow = [section for section in sections if not section.wide]
    columns, gap = in_two_columns(narrow)
    blocks = [columns] if columns else []
    if len(narrow) > 2 and gap > EMPTY:
        blocks = [in_two_columns(narrow[:-1])[0], narrow[-1:]]
    wide = [[section] for section in sections if section.wide]
    return [*wide, *blocks] if sections and sections[0].wide else [*blocks, *wide]


def in_two_columns(sections: Sequence[Section]) -> tuple[list[Section], float]:
    """Order sections so that two columns, filled one after the other, end nearly together.

    The first stays first, and few others change places.

    Returns:
        The sections in order, and by how many pixels the columns differ, as far as heights can be
        estimated.
    """
    if len(sections) < 2:
        return list(sections), 0.0
    heights = [_height(section) for section in sections]

    def gap(left: set[int]) -> float:
        return abs(sum(h if i in left else -h for i, h in enumerate(heights)))

    def gap_and_moves(left: set[int]) -> tuple[float, int]:
        moves = sum(i not in left and j in left for i, j in combinations(range(len(heights)), 2))
        return max(gap(left), ENDS_TOGETHER), moves

    rest = range(1, len(sections))
    left = min(({0, *some} for n in rest for some in combinations(rest, n - 1)), key=gap_and_moves)
    order = sorted(range(len(sections)), key=lambda i: i not in left)
    return [sections[i] for i in order], gap(left)


def _height(section: Section) -> float:
    """The approximate height of a section in a column, in pixels."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', section.html)
    drawn = COLUMN * float(box[2]) / float(box[1]) if box else COLUMN / 2
    return drawn + 130 + 22 * (len(section.note) // 65 + 1)


def environment(*packages: str) -> Environment:
    """Templates from the folder ``page`` of these packages, then of this one, with shared filters.

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
    made.filters |= {"typeset": typeset, "in_blocks": in_blocks}
    return made


def rendered(template: str, **values: Any) -> str:
    """Render a template of this folder with these values."""
    return environment().get_template(template).render(**values)


def path_of_page(path: str | Path) -> Path:
    """The file of a page; a folder is refused before anything is drawn."""
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"{path} is a folder. Give the name of a file, such as {Path(path) / 'report.html'}."
        )
    return Path(path)


def typeset(text: str) -> str:
    """Replace hyphens that mean minus by minus signs, and keep an interval on one line.

    >>> typeset("batchformer_self - baseline: -0.5 [-1.0, +0.1]").replace("\N{NO-BREAK SPACE}", "_")
    'batchformer_self − baseline: −0.5 [−1.0,_+0.1]'
    """
    text = re.sub(r"(?<![\w.])-(?=\d)|(?<= )-(?= )", "\N{MINUS SIGN}", text)
    return re.sub(r"(\[\S+,) (\S+\])", "\\1\N{NO-BREAK SPACE}\\2", text)
