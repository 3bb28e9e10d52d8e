"""One self-contained page with the figures of a single network, such as a user's model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchformer.insight.figures.catalogue import NETWORK_FIGURES
from batchformer.insight.figures.networks import NetworkGroup, SingleNetwork
from batchformer.insight.files import write_atomically
from batchformer.insight.page.explorer import explorer_section, script_policy
from batchformer.insight.page.html import Section, path_of_page, rendered, section_of
from batchformer.insight.record import InsightArrays

TITLE = "Relations between samples"


def write_insight_page(insight: InsightArrays, path: str | Path, title: str = TITLE) -> Path:
    """Write :func:`insight_page` to a file; the file is complete or not there."""
    path = path_of_page(path)
    write_atomically(path, insight_page(insight, title).encode())
    return path


def insight_page(insight: InsightArrays, title: str = TITLE) -> str:
    """The page of one network's figures.

    Arrays go by the names of ``batchformer.insight.record``; a figure that lacks one is left out.
    """
    group = SingleNetwork(insight)
    made = (one for name in NETWORK_FIGURES for one in network_sections(name, group, "network"))
    sections = sorted(made, key=lambda section: not section.wide)
    if not sections:
        raise ValueError(
            f"Nothing to draw: none of the figures has its arrays among {sorted(insight)}."
        )
    policy = script_policy(sections)
    return rendered(
        "insight.html.jinja",
        title=title,
        sections=sections,
        policy=policy,
        counts_of_loader="counts_of_loader" in insight,
    )


def network_sections(name: str, group: NetworkGroup, prefix: str) -> Iterator[Section]:
    """Yield the section of one of :data:`NETWORK_FIGURES`, if a network has its arrays.

    The explorer of batches follows the attention figure. ``prefix`` keeps ids unique on the page.
    """
    figure = NETWORK_FIGURES[name].of(group)
    if figure is not None:
        yield section_of(figure, f"{prefix}-{name}")
    explorer = explorer_section(group, prefix) if name == "attention" else None
    if explorer is not None:
        yield explorer
