"""What there is to run, and on which data; answers without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from batchformer.data.location import available, ensure_present_or_reachable, looked_in
from batchformer.recipes import RECIPES
from batchformer.recipes.arms import ARMS
from batchformer.recipes.paper import ROWS
from batchformer.recipes.recipe import Recipe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def ensure_data(recipe: Recipe) -> None:
    """Refuse to start on data that is neither here nor to be had; see ``ensure_present_...``."""
    if recipe.data.name != "digits":
        root = None if recipe.data.root is None else Path(recipe.data.root)
        ensure_present_or_reachable(recipe.data.name, root)


def data_state(recipe: Recipe) -> str:
    """Whether a recipe's data is here."""
    if recipe.data.name == "digits":
        return "embedded"
    root = None if recipe.data.root is None else Path(recipe.data.root)
    return "present" if available(recipe.data.name, root) else "absent"


def print_listing(console: Console | None = None) -> None:
    """Recipes, arms, and the paper's rows without a recipe."""
    console = console or _console()
    title = "Recipes (paper: baseline -> + BatchFormer)"
    table = _table(title, "recipe", "data", "paper", wide="paper")
    for name, make in RECIPES.items():
        recipe = make()
        what = f"{recipe.data.name} r={recipe.data.ratio:g}, {recipe.method}"
        about = f"{name}\n  {recipe.task}: {what}"
        table.add_row(about, data_state(recipe), paper_numbers(recipe))
    console.print(table)
    arms = _table("\nArms", "arm", "what it is", wide="arm")
    for name, (_, purpose) in ARMS.items():
        arms.add_row(name, purpose)
    console.print(arms)
    rows = _table(
        "\nRows of the paper without a recipe", "table", "data", "method", "paper", "state"
    )
    for row in (row for row in ROWS if row.recipe is None):
        headline, value = next(iter(row.numbers.items()))
        method = row.method + (" + BatchFormer" if row.arm == "batchformer" else "")
        state = "not implemented" if row.planned else "not planned"
        data = f"{row.data}, {row.model}"
        rows.add_row(row.table, data, method, f"{headline} {value:g}", state)
    console.print(rows)


def _console() -> Console:
    from rich.console import Console

    return Console()


def _table(title: str, *columns: str, wide: str = "") -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == wide)
    return table


def paper_numbers(recipe: Recipe) -> str:
    """The paper's headline numbers of both arms."""
    if not recipe.paper:
        return "-"
    values = [next(iter(numbers.values())) for numbers in recipe.paper.values()]
    return " -> ".join(f"{value:g}" for value in values)


def print_data(console: Console | None = None) -> None:
    """Where each data set is, or was looked for and how to get it."""
    console = console or _console()
    table = _table("", "data", "here", "where")
    table.add_row("digits", "embedded", "scikit-learn")
    for name in ("cifar10", "cifar100"):
        found = available(name)
        table.add_row(
            name,
            "present" if found else "absent",
            str(found) if found else f"looked in {looked_in()}; downloaded at first use",
        )
    console.print(table)
    console.print(
        "\nSet BATCHFORMER_DATA, or pass --data.root, to a folder with torchvision's files "
        "(cifar-100-python/) or to an .npz of a long tail."
    )
