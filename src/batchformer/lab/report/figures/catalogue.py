"""The figures by name. What draws them is imported when one is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchformer.lab.report.figures.shown import Shown

INSIGHT = "insight.npz"


@dataclass(frozen=True)
class Entry:
    """A figure that can be asked for.

    Args:
        summary: what it shows, in a line.
        place: ``module:function`` in this folder; the function takes a group and the options.
        needs: what of a run it is drawn from.
        options: that it takes.
    """

    summary: str
    place: str
    needs: str
    options: tuple[str, ...] = ()

    def load(self) -> Callable[..., Shown | None]:
        """The function that makes the figure of a group, or None where no run has its numbers."""
        module, _, function = self.place.partition(":")
        found: Callable[..., Shown | None] = getattr(
            import_module(f"batchformer.lab.report.figures.{module}"), function
        )
        return found


FIGURES = {
    "training": Entry(
        "loss and score by update, with bands over seeds", "earlier:training", "metrics.jsonl"
    ),
    "classes": Entry(
        "accuracy by class, and its difference to the reference", "earlier:classes", "figures.npz"
    ),
    "head_tail": Entry("which shot group images are taken for", "head_tail:shown", "figures.npz"),
    "reliability": Entry(
        "is a network as sure as it is right?", "reliability:shown", INSIGHT, ("by_shots",)
    ),
    "influence": Entry(
        "whose loss moves the features of others, by class frequency",
        "influence:shown",
        INSIGHT,
        ("measure", "on", "cumulative"),
    ),
    "attention": Entry(
        "who attends to whom, by class, head and shot group",
        "attention:shown",
        INSIGHT,
        ("arm",),
    ),
    "features": Entry(
        "plain features on two axes, and how far classes lie apart",
        "features:shown",
        INSIGHT,
    ),
    "cam": Entry(
        "where the network looks, arm above arm",
        "cam:shown",
        INSIGHT,
        ("rule", "shots", "images", "arm", "cam_layer"),
    ),
    "bias": Entry(
        "seen against unseen pairs or classes, as a bias moves predictions",
        "earlier:bias",
        "figures.npz",
    ),
    "choice": Entry(
        "which epoch the classes of validation chose", "zero_shot:shown", "figures.npz"
    ),
    "convergence": Entry(
        "how fast a linear probe learns", "earlier:probe", "metrics.jsonl of a linear probe"
    ),
}


def find_figure(name: str) -> Entry:
    """The figure of this name; a wrong one is answered with the nearest."""
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name, FIGURES, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"There is no figure {name!r}.{hint} Figures: {', '.join(FIGURES)}.")


def listing() -> str:
    """Every figure with a line of its own.

    >>> listing().splitlines()[3]
    '  training     loss and score by update, with bands over seeds'
    """
    width = max(map(len, FIGURES)) + 2
    lines = [f"  {name:<{width}}{entry.summary}" for name, entry in FIGURES.items()]
    return "\n".join(
        [
            "Usage: batchformer show FIGURE RUN... [--to FILE.svg|png|pdf]",
            "",
            "Figures:",
            *lines,
            "",
            "Without --to the numbers are printed. Options: batchformer show influence --help",
        ]
    )
