"""A printed row of the paper, and tables of them as text; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Task = Literal[
    "long_tailed",
    "zero_shot",
    "domains",
    "contrastive",
    "detection",
    "recognition",
    "ablation",
]
Arm = Literal["baseline", "batchformer"]


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One method on one data set with one network, as the paper prints it."""

    table: str  # T1 to T8 and T6b (the appendix's longer T6); tables without a number by subject
    task: Task  # family of experiments
    data: str  # data set, with what distinguishes its versions
    model: str  # network
    method: str  # what is trained; the row with BatchFormer names the method it is added to
    arm: Arm  # with BatchFormer, or without
    # Every printed number in percent by metric, the headline first; a dash is left out
    numbers: Mapping[str, float]
    # Name of the recipe that trains this row; None where the paper copies a published number of a
    # method that it also trains
    recipe: str | None = None
    note: str = ""  # what a reader should know before trusting the number


def read_rows(task: Task, text: str, columns: str = "") -> tuple[PaperRow, ...]:
    """The rows of some tables, written as the paper prints them.

    A block of a table begins with ``= TABLE | DATA | NETWORK``, and its metrics if they are not
    `columns`; a star marks the headline if it is not the first. A line ``METHOD | RECIPE`` comes
    before the rows of a method, which are indented: its own, and after ``+`` that with BatchFormer.
    ``#`` begins a note on the row above it; a note below the first line of a block is on all of it.

    >>> first, second = read_rows("domains", '''
    ... = T6 | PACS | ResNet-18 | art photo *average
    ... Baseline | pacs_baseline
    ...   79.9±1.0 95.7±0.4 87.8
    ...   + 80.4±0.2 - 88.0
    ...   # one is not printed
    ... ''')
    >>> first.numbers, second.numbers
    ({'average': 87.8, 'art': 79.9, 'photo': 95.7}, {'average': 88.0, 'art': 80.4})
    >>> first.note, second.note, second.arm
    ('', 'one is not printed', 'batchformer')
    """
    found: list[tuple[dict[str, Any], list[str], list[str]]] = []
    block: dict[str, Any] = {}
    for line in text.strip().splitlines():
        words = line.lstrip(" =#+")
        if line.startswith("="):
            table, data, model, *own = words.split(" | ")
            block = {"task": task, "table": table, "data": data, "model": model}
            metrics, on_block = (own or [columns])[0].split(), list[str]()
        elif line.startswith("#"):
            on_block.append(words)
        elif line.startswith("  #"):
            found[-1][1].append(words)
        elif not line.startswith(" "):
            method, _, recipe = words.partition(" | ")
            block |= {"method": method, "recipe": recipe or None}
        else:
            arm = "batchformer" if line.startswith("  +") else "baseline"
            numbers = _means(dict(zip(metrics, words.split(), strict=True)))
            found.append(({**block, "arm": arm, "numbers": numbers}, [], on_block))
    return tuple(
        PaperRow(**row, note="; ".join(filter(None, (" ".join(own), " ".join(shared)))))
        for row, own, shared in found
    )


def _means(printed: Mapping[str, str]) -> dict[str, float]:
    """The numbers, without what is printed after ±, headline first; dashes are left out."""
    order = sorted(printed, key=lambda metric: not metric.startswith("*"))
    means = {metric: printed[metric].partition("±")[0] for metric in order}
    return {metric.lstrip("*"): float(mean) for metric, mean in means.items() if mean != "-"}
