"""The figures of networks that were looked at, by name.

To add a figure, write its file beside this one, a line in :data:`NETWORK_FIGURES`, and its test. It
is then part of every page and of ``batchformer show``. Its file is imported when it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from batchformer.insight.record import FILE

if TYPE_CHECKING:
    from batchformer.insight.figures.captioned import CaptionedFigure
    from batchformer.insight.figures.networks import NetworkGroup


@dataclass(frozen=True)
class Entry:
    """A figure that can be asked for."""

    summary: str
    # Its `gather` takes a group and the options, and returns what the figure shows, or None
    # where no run has it; its `make` turns that into the figure
    module: str
    needs: str  # the file of a run that it is drawn from

    def of(self, group: NetworkGroup, **options: Any) -> CaptionedFigure | None:
        """The figure of a group; None where no run has its numbers."""
        module: Any = import_module(self.module)
        data = module.gather(group, **options)
        made: CaptionedFigure | None = None if data is None else module.make(data)
        return made

    @property
    def options(self) -> Mapping[str, Parameter]:
        """The parameters of ``gather`` besides the group."""
        _, *own = signature(import_module(self.module).gather).parameters.values()
        return {parameter.name: parameter for parameter in own}


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
