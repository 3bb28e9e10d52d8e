"""Lists what can be run, and whether its data is here; needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from textwrap import indent, wrap
from typing import TYPE_CHECKING

from batchformer.lab.config.arms import ARMS, BASELINE, MAIN
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.sets.presence import State, ensure_present, places, state_of
from batchformer.lab.recipes import RECIPES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from batchformer.lab.recipes.sweeps import Sweep

#: Characters of a recipe's row in the paper, so that a terminal of 80 holds the other columns.
ROW_WIDTH = 50
#: How many similar names an error suggests.
MOST_NEAR = 3


def ensure_data(recipe: Recipe) -> None:
    """Refuse data that is neither here nor can be downloaded, before anything is loaded."""
    ensure_present(recipe.data.images())


def data_state(recipe: Recipe) -> State:
    """Whether a recipe's data is here."""
    return "yours" if recipe.name.startswith("my_") else state_of(recipe.data.images())


def print_listing(console: Console | None = None) -> None:
    """Print all recipes and the arms."""
    console = console or _console()
    console.print(_recipes(make() for make in RECIPES.values()))
    arms = _table("\nArms", "arm", "what it is", whole=("arm",))
    for name, arm in ARMS.items():
        arms.add_row(name, arm.purpose)
    console.print(arms)


def print_matching(words: Sequence[str], console: Console | None = None) -> None:
    """Print the recipes whose lines in the list have all these words, or parts of words."""
    recipes = [make() for make in RECIPES.values()]
    found = [
        recipe
        for recipe in recipes
        if all(word.lower() in f"{recipe.name} {_about(recipe)}".lower() for word in words)
    ]
    if not found:
        near = _near(words)
        hint = f" Near: {', '.join(near)}." if near else ""
        raise ValueError(
            f"No recipe has {' and '.join(map(repr, words))} in its name, task, data, method or "
            f"row of the paper.{hint} `batchformer list` shows all."
        )
    (console or _console()).print(_recipes(found))


def _near(words: Sequence[str]) -> list[str]:
    """Recipes whose names, or parts of them, are similar to what was asked for."""
    near = difflib.get_close_matches("_".join(words).lower(), RECIPES, MOST_NEAR)
    parts = dict.fromkeys(part for name in RECIPES for part in name.split("_"))
    for word in words:
        for part in difflib.get_close_matches(word.lower(), parts, MOST_NEAR):
            near += [name for name in RECIPES if part in name.split("_")]
    return list(dict.fromkeys(near))[:MOST_NEAR]


def _recipes(recipes: Iterable[Recipe]) -> Table:
    title = "Recipes (paper: baseline -> + BatchFormer)"
    table = _table(title, "recipe", "data", "paper", whole=("paper",))
    for recipe in recipes:
        below = indent(_about(recipe), "  ")
        table.add_row(f"{recipe.name}\n{below}", data_state(recipe), paper_numbers(recipe))
    return table


def _about(recipe: Recipe) -> str:
    """Task, data and method of a recipe, and below them its row of the paper."""
    swad = " with swad" if recipe.hyper.swad else ""
    what = f"{recipe.task}: {recipe.data.words()}, {recipe.method}{swad}"
    return "\n".join((what, *wrap(recipe.table, ROW_WIDTH)))


def _console() -> Console:
    from rich.console import Console

    return Console()


def _table(title: str, *columns: str, whole: Sequence[str] = ()) -> Table:
    """An empty table; cells of the columns in `whole` are never wrapped."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    return table


def paper_numbers(recipe: Recipe) -> str:
    """The paper's headline numbers, ``baseline -> batchformer``; one may be missing."""
    if not recipe.paper:
        return "-"
    values = [next(iter(numbers.values())) for numbers in recipe.paper.values()]
    first = "" if BASELINE in recipe.paper else "-> "
    return first + " -> ".join(f"{value:g}" for value in values)


def print_data(console: Console | None = None) -> None:
    """Print where each data set is, or where it was looked for and how to get it."""
    console = console or _console()
    table = _table("", "data", "here", "where")
    for row in places():
        table.add_row(*row)
    console.print(table)
    console.print(
        "\nSet BATCHFORMER_DATA, or pass --data.root, to a folder with torchvision's files "
        "(cifar-100-python/), with folders of images and lists (imagenet_lt/), or to an .npz of a "
        "long tail. Your own images: batchformer compare my_folder --data.root FOLDER, or "
        "my_domains where they are of several domains."
    )


def print_sweeps(console: Console | None = None) -> None:
    """Print every sweep: what it varies, whether its data is here, levels, the paper's numbers."""
    from batchformer.lab.recipes.sweeps import SWEEPS

    title = "Sweeps (levels: the paper's All with BatchFormer; * others are compared with it)"
    table = _table(title, "sweep", "data", "levels", whole=("sweep", "data"))
    for sweep in SWEEPS.values():
        state = data_state(sweep.base_recipe())
        table.add_row(sweep.name, state, f"{sweep.factor}: {levels_and_paper(sweep)}")
    (console or _console()).print(table)


def levels_and_paper(sweep: Sweep) -> str:
    """Every level, with the paper's headline number where there is one.

    >>> from batchformer.lab.recipes.sweeps import find_sweep
    >>> levels_and_paper(find_sweep("imagenet_lt_shared_classifier"))
    'shared* (50.9), mixed_only (42.4)'
    """
    base = sweep.base_recipe()
    listed = []
    for name in sweep.level_names:
        numbers = sweep.paper(name, base).get(MAIN)
        paper = f" ({next(iter(numbers.values())):g})" if numbers else ""
        listed.append(f"{name}{'*' * (name == sweep.reference)}{paper}")
    return ", ".join(listed)
