"""All figures by name: those of networks that were looked at, and those of what runs log.

To add a figure, write its file beside this one, a line in :data:`FIGURES`, and its test. It is then
part of the page and of ``batchformer show``. Its file is imported when it is drawn.
"""

from __future__ import annotations

import difflib

from batchformer.insight.figures.catalogue import NETWORK_FIGURES, Entry


def _entry(name: str, summary: str, needs: str) -> Entry:
    return Entry(summary, f"batchformer.lab.report.figures.{name}", needs)


LOGGED, ARRAYS = "metrics.jsonl", "figures.npz"

FIGURES = {
    "training": _entry("training", "loss and score by update, with bands over seeds", LOGGED),
    "choice": _entry("choice", "which epoch the classes of validation chose", ARRAYS),
    "classes": _entry(
        "per_class", "accuracy by class, and its difference to the reference", ARRAYS
    ),
    "head_tail": _entry("head_tail", "which shot group images are taken for", ARRAYS),
    **NETWORK_FIGURES,
    "bias": _entry(
        "bias", "seen against unseen pairs or classes, as a bias moves predictions", ARRAYS
    ),
    "convergence": _entry(
        "convergence", "how fast a linear probe learns", f"{LOGGED} of a linear probe"
    ),
}
"""In the order of a page."""


def find_figure(name: str) -> Entry:
    """The figure of this name; the error for an unknown one suggests the nearest."""
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name, FIGURES, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"There is no figure {name!r}.{hint} Figures: {', '.join(FIGURES)}.")


def listing() -> str:
    """The usage of ``batchformer show``, with a line for every figure.

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
