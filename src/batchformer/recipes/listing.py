"""What there is to run, and on which data; answers without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from batchformer.data import domain_layouts
from batchformer.data.annotated import ANNOTATED, Lists, ensure_present, lists_of, present
from batchformer.data.domain_layouts import TREE
from batchformer.data.location import available, ensure_present_or_reachable, looked_in
from batchformer.recipes import RECIPES
from batchformer.recipes.arms import ARMS
from batchformer.recipes.paper import ROWS
from batchformer.recipes.recipe import Recipe
from batchformer.tasks.config import LongTailConfig
from batchformer.tasks.domain_config import DomainConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def ensure_data(recipe: Recipe) -> None:
    """Refuse to start on data that is neither here nor to be had, before anything is loaded."""
    data = recipe.data
    if isinstance(data, DomainConfig):
        if data.of_files:
            domain_layouts.ensure_present(data.name, data.root, data.lists)
    elif data.name == "cifar10" or data.name == "cifar100":
        ensure_present_or_reachable(data.name, None if data.root is None else Path(data.root))
    elif data.name in ANNOTATED:
        ensure_present(data.name, _lists(data))


def data_state(recipe: Recipe) -> str:
    """Whether a recipe's data is here."""
    data = recipe.data
    if isinstance(data, DomainConfig):
        if data.name == TREE:
            return "yours"
        here = not data.of_files or domain_layouts.present(data.name, data.root, data.lists)
        return ("present" if data.of_files else "embedded") if here else "absent"
    if data.name == "cifar10" or data.name == "cifar100":
        root = None if data.root is None else Path(data.root)
        return "present" if available(data.name, root) else "absent"
    if data.name in ANNOTATED:
        return "present" if present(_lists(data)) else "absent"
    return "embedded" if data.name == "digits" else "yours"


def _lists(data: LongTailConfig) -> Lists:
    return lists_of(data.name, data.root, data.train_list, data.test_list, data.scored_on)


def print_listing(console: Console | None = None) -> None:
    """Recipes, arms, and the paper's rows without a recipe."""
    console = console or _console()
    title = "Recipes (paper: baseline -> + BatchFormer)"
    table = _table(title, "recipe", "data", "paper", wide="paper")
    for name, make in RECIPES.items():
        recipe = make()
        swad = " with swad" if recipe.hyper.swad else ""
        about = f"{name}\n  {recipe.task}: {_what(recipe)}, {recipe.method}{swad}"
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


def _what(recipe: Recipe) -> str:
    """The data of a recipe in a few words."""
    data = recipe.data
    if isinstance(data, DomainConfig):
        return f"{data.name} {data.source} to {data.target}" if data.adapt else data.name
    return data.name if data.of_files else f"{data.name} r={data.ratio:g}"


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
    for name, known in ANNOTATED.items():
        lists = lists_of(name)
        here = present(lists)
        words = f"looked for {known.train} and {known.test} in {lists.root}; {known.source}"
        table.add_row(name, "present" if here else "absent", str(lists.root) if here else words)
    table.add_row("rotated_digits", "embedded", "scikit-learn")
    for name, layout in domain_layouts.DOMAIN_SETS.items():
        place, here = domain_layouts.place_of(name), domain_layouts.present(name)
        folders = ", ".join(names[0] for names in layout.domains.values())
        words = f"looked for the folders {folders} in {place}; {layout.source}"
        table.add_row(name, "present" if here else "absent", str(place) if here else words)
    console.print(table)
    console.print(
        "\nSet BATCHFORMER_DATA, or pass --data.root, to a folder with torchvision's files "
        "(cifar-100-python/), with folders of images and lists (imagenet_lt/), or to an .npz of a "
        "long tail. Your own images: batchformer compare my_folder --data.root FOLDER, or "
        "my_domains where they are of several domains."
    )
