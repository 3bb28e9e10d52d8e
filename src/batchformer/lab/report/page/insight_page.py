"""One self-contained page of what was seen of a single network, such as a model of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from batchformer.insight.record import Insight
from batchformer.lab.report.page.html import environment, policy
from batchformer.lab.report.page.sections import Section, drawn, explorer
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.runs import Run
from batchformer.plug.files import write_atomically

TEMPLATE = "insight.html.jinja"
TITLE = "Relations between samples"
NETWORK = "network"
"""How the figures call the only arm there is."""

SECTIONS: tuple[Callable[[RunGroup, str], Section | None], ...] = (
    drawn("reliability"),
    drawn("influence"),
    drawn("attention"),
    explorer,
    drawn("features"),
    drawn("cam"),
)


@dataclass(frozen=True, eq=False)
class Looked(Run):
    """A network that was looked at without a run folder."""

    arrays: Insight = field(default_factory=dict)

    @cached_property
    def insight(self) -> Insight:
        """The arrays as they were given."""
        return self.arrays

    @cached_property
    def insight_figures(self) -> Insight:
        """None: there is no folder."""
        return {}

    @cached_property
    def insight_part(self) -> str:
        """None: there is one network."""
        return ""


def write_insight_page(insight: Insight, path: str | Path, title: str = TITLE) -> Path:
    """Write the page of one network's figures; the file is complete or not there.

    Args:
        insight: arrays by the names of ``batchformer.insight.record``; a figure whose arrays are
            missing is left out.
        path: the page.
        title: its heading.

    Raises:
        ValueError: there is nothing to draw.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the page a name, {path / 'report.html'}")
    found = [make(group_of(insight), "network") for make in SECTIONS]
    sections = [section for section in found if section is not None]
    if not sections:
        raise ValueError(
            f"Nothing to draw: none of the figures has its arrays among {sorted(insight)}."
        )
    page: str = (
        environment()
        .get_template(TEMPLATE)
        .render(title=title, sections=sections, policy=policy(sections))
    )
    write_atomically(path, page.encode())
    return path


def group_of(insight: Insight) -> RunGroup:
    """The network as the only run of a group, as figures take it."""
    nothing: dict[str, Any] = {}
    run = Looked(Path(), nothing, NETWORK, 0, nothing, (), {"metrics": {}}, arrays=insight)
    return RunGroup(NETWORK, (run,), reference=NETWORK)
