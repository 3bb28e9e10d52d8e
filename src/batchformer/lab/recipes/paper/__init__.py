"""Every row of every table of the paper, as data: what there is to compare a run with."""

from __future__ import annotations

from batchformer.lab.recipes.paper import contrastive, domains, long_tailed, zero_shot
from batchformer.lab.recipes.paper.row import PaperRow

__all__ = ["ROWS", "PaperRow", "numbers_for", "rows_for"]

#: In the paper's order within each family. Rows that contradict one another are kept, with notes.
ROWS: tuple[PaperRow, ...] = (
    *long_tailed.ROWS,
    *zero_shot.ROWS,
    *domains.ROWS,
    *contrastive.ROWS,
    *long_tailed.ABLATIONS,
)


def rows_for(recipe_name: str) -> tuple[PaperRow, ...]:
    """The rows that this recipe trains, one for each arm; none for a recipe of our own.

    >>> [(row.arm, row.numbers["all"]) for row in rows_for("cifar100_lt_balanced_softmax")]
    [('baseline', 50.7), ('batchformer', 51.7)]
    """
    return tuple(row for row in ROWS if row.recipe == recipe_name)


def numbers_for(recipe_name: str) -> dict[str, dict[str, float]]:
    """The paper's numbers for a recipe, by arm and then metric.

    >>> numbers_for("cifar100_lt_ride")
    {'baseline': {'all': 48.0, 'many': 68.1, 'medium': 49.2, 'few': 23.9}}
    """
    numbers: dict[str, dict[str, float]] = {}
    for row in rows_for(recipe_name):
        # Where tables repeat a row, the numbers of the first one count.
        numbers[row.arm] = {**row.numbers, **numbers.get(row.arm, {})}
    return numbers
