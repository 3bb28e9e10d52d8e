"""The figures of networks that were looked at, by name.

A further figure is a file beside this one, a line in :data:`NETWORK_FIGURES`, and its test: it is
then part of every page and of ``batchformer show``. A figure's file is imported when it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING

from batchformer.insight.record import FILE

if TYPE_CHECKING:
    from batchformer.insight.figures.captioned import CaptionedFigure


@dataclass(frozen=True)
class Entry:
    """A figure that can be asked for.

    Args:
        module: its function ``make`` takes a group and the options.
        needs: the file of a run that it is drawn from.
    """

    summary: str
    module: str
    needs: str

    def load(self) -> Callable[..., CaptionedFigure | None]:
        """The function that makes the figure of a group, or None where no run has its numbers."""
        found: Callable[..., CaptionedFigure | None] = import_module(self.module).make
        return found

    @property
    def options(self) -> tuple[str, ...]:
        """What it takes beside the group."""
        return tuple(signature(self.load()).parameters)[1:]


NETWORK_FIGURES = {
    name: Entry(summary, f"batchformer.insight.figures.{name}", FILE)
    for name, summary in {
        "reliability": "is a network as sure as it is right?",
        "influence": "gradients of losses on others' features, by class frequency",
        "attention": "who attends to whom, by class, head and shot group",
        "features": "plain features on two axes, and how far classes lie apart",
        "cam": "where the network looks, arm above arm",
    }.items()
}
"""In the order of a page."""
