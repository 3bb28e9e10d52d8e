"""The figures of networks that were looked at, by name.

A further figure is a file beside this one, a line in :data:`NETWORK_FIGURES`, and its test: it is
then part of every page and of ``batchformer show``. A figure's file is imported when it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from batchformer.insight.record import FILE

if TYPE_CHECKING:
    from batchformer.insight.figures.captioned import CaptionedFigure


@dataclass(frozen=True)
class Entry:
    """A figure that can be asked for.

    Args:
        place: ``module:function``; the function takes a group and the options.
        needs: the file of a run that it is drawn from.
    """

    summary: str
    place: str
    needs: str
    options: tuple[str, ...] = ()

    def load(self) -> Callable[..., CaptionedFigure | None]:
        """The function that makes the figure of a group, or None where no run has its numbers."""
        module, _, function = self.place.partition(":")
        found: Callable[..., CaptionedFigure | None] = getattr(import_module(module), function)
        return found


def _entry(name: str, summary: str, *options: str) -> Entry:
    return Entry(summary, f"batchformer.insight.figures.{name}:make", FILE, options)


NETWORK_FIGURES = {
    "reliability": _entry("reliability", "is a network as sure as it is right?", "by_shots"),
    "influence": _entry(
        "influence",
        "whose loss moves the features of others, by class frequency",
        *("measure", "on", "cumulative"),
    ),
    "attention": _entry("attention", "who attends to whom, by class, head and shot group", "arm"),
    "features": _entry("features", "plain features on two axes, and how far classes lie apart"),
    "cam": _entry(
        "cam",
        "where the network looks, arm above arm",
        *("rule", "shots", "images", "arm", "cam_layer"),
    ),
}
"""In the order of a page."""
