"""The sweeps there are, with the paper's numbers; answers without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchformer.lab.recipes.ablations import SWEEPS
from batchformer.lab.recipes.sweep import Sweep
from batchformer.lab.runs.data_state import data_state

if TYPE_CHECKING:
    from rich.console import Console


def print_sweeps(console: Console | None = None) -> None:
    """Every sweep: what it varies, whether it can be run, its levels with the paper's numbers."""
    from rich.console import Console as RichConsole
    from rich.table import Table

    title = "Sweeps (levels: the paper's All with BatchFormer; * others are compared with it)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("sweep", no_wrap=True)
    table.add_column("data", no_wrap=True)
    table.add_column("levels", overflow="fold")
    for sweep in SWEEPS.values():
        table.add_row(sweep.name, state(sweep), f"{sweep.factor}: {levels_and_paper(sweep)}")
    (console or RichConsole()).print(table)


def state(sweep: Sweep) -> str:
    """Whether a sweep's data is here, or that it has no recipe to vary."""
    return data_state(sweep.base_recipe()) if sweep.known else "no recipe"


def levels_and_paper(sweep: Sweep) -> str:
    """Every level, with the paper's headline number where there is one.

    >>> levels_and_paper(SWEEPS["imagenet_lt_shared_classifier"])
    'shared* (50.9), mixed_only (42.4)'
    """
    base = sweep.base_recipe() if sweep.known else None
    listed = []
    for name in sweep.level_names:
        numbers = sweep.paper(name, base).get("batchformer")
        paper = f" ({next(iter(numbers.values())):g})" if numbers else ""
        listed.append(f"{name}{'*' * (name == sweep.reference)}{paper}")
    return ", ".join(listed)
