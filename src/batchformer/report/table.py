"""The comparison as text: for a terminal, for a pipe, and for a Markdown page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchformer.metrics.intervals import FEWEST_SEEDS
from batchformer.report.extra import extra
from batchformer.report.names import metric_label
from batchformer.report.results import Comparison, Difference, RecipeComparison, Score
from batchformer.report.words import (
    INTERVAL,
    counted,
    differences_of,
    headline,
    interval,
    number,
    over_images_sentence,
    p_value,
    paper_sentence,
    short_verdict,
    signed,
    values_of,
)

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 120
"""Columns; 80 are enough for every cell to stay on one line."""
SCORE_COLUMNS = ("metric", "arm", "n", "mean", "sd", "95% interval", "paper")
DIFFERENCE_COLUMNS = ("metric", "diff.", "95% interval", "p", "Holm", "paper", "verdict")
Columns = tuple[str, ...]
Rows = list[tuple[str, ...]]
LEFT = frozenset({"metric", "arm", "verdict"})


def print_table(comparison: Comparison, console: Console | None = None) -> None:
    """Print each arm, then each arm's difference to the reference, recipe by recipe."""
    with extra("lab"):
        from rich import box
        from rich.console import Console as RichConsole
        from rich.table import Table
        from rich.text import Text

    console = console or RichConsole()
    width = min(console.width, WIDEST)

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, width=width)

    def show(caption: str, columns: Columns, rows: Rows) -> None:
        say(f"\n{caption}", "bold")
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        columns, rows = _without_empty(columns, rows)
        for column in columns:
            table.add_column(column, justify="left" if column in LEFT else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table, width=width)

    for recipe in comparison.recipes:
        say(f"\n{recipe.name}", "bold")
        say(headline(recipe, comparison.comparisons))
        show("Each arm", SCORE_COLUMNS, score_rows(recipe))
        for arm in recipe.others:
            caption = f"{arm} - {recipe.reference}"
            show(caption, DIFFERENCE_COLUMNS, difference_rows(recipe, arm))
        say("\n" + "\n".join(_below(recipe)))
    say("\n" + "\n".join(_closing(comparison)))


def as_markdown(comparison: Comparison) -> str:
    """The same tables as GitHub Markdown."""
    blocks = []
    for recipe in comparison.recipes:
        blocks += [f"## {recipe.name}", headline(recipe, comparison.comparisons)]
        blocks.append(_markdown(SCORE_COLUMNS, score_rows(recipe)))
        for arm in recipe.others:
            blocks.append(f"### {arm} - {recipe.reference}")
            blocks.append(_markdown(DIFFERENCE_COLUMNS, difference_rows(recipe, arm)))
        blocks += _bullets(_below(recipe))
    blocks += ["## About these numbers", *_bullets(_closing(comparison))]
    return "\n\n".join(blocks) + "\n"


def score_rows(recipe: RecipeComparison) -> Rows:
    """One row per metric and arm, in the order of ``SCORE_COLUMNS``; a metric is named once."""
    rows: Rows = []
    for metric in recipe.metrics:
        arms = [arm for arm in recipe.arms if (arm, metric) in recipe.scores]
        names = [metric_label(metric)] + [""] * (len(arms) - 1)
        for name, arm in zip(names, arms, strict=True):
            rows.append((name, arm, *_score_cells(recipe.scores[arm, metric])))
    return rows


def difference_rows(recipe: RecipeComparison, arm: str) -> Rows:
    """One row per metric, in the order of ``DIFFERENCE_COLUMNS``."""
    return [
        (metric_label(metric), *_difference_cells(recipe.differences[arm, metric]))
        for metric in recipe.metrics
        if (arm, metric) in recipe.differences
    ]


def _score_cells(score: Score) -> tuple[str, ...]:
    found, paper = score.summary, "" if score.paper is None else number(score.paper, 1)
    if found.n < FEWEST_SEEDS or found.sd is None:
        return str(found.n), values_of(score), "", "", paper
    return (
        str(found.n),
        number(found.mean),
        number(found.sd),
        interval(found.low, found.high),
        paper,
    )


def _difference_cells(difference: Difference) -> tuple[str, ...]:
    result, effect = difference.paired, difference.paper_effect
    paper = "" if effect is None else signed(effect, 1)
    if result.n < FEWEST_SEEDS:
        return differences_of(difference), "", "", "", paper, difference.outcome
    return (
        signed(result.difference),
        interval(result.low, result.high, sign=True),
        p_value(result.p_value),
        p_value(difference.adjusted),
        paper,
        short_verdict(difference),
    )


def _below(recipe: RecipeComparison) -> list[str]:
    """What the tables of a recipe cannot hold."""
    lines = [paper_sentence(recipe, arm) for arm in recipe.others] + [over_images_sentence(recipe)]
    return [line for line in lines if line] + [f"Note: {line}." for line in recipe.warnings]


def _closing(comparison: Comparison) -> list[str]:
    lines = [counted(comparison)]
    if comparison.tested:
        lines.append(f"{INTERVAL} A gain or loss is an interval of the difference without 0.")
    lines += [f"Not included: {line}." for line in comparison.left_out]
    return lines + [f"Note: {line}." for line in comparison.remarks]


def _without_empty(columns: Columns, rows: Rows) -> tuple[Columns, Rows]:
    """Leave out columns with nothing in them: no paper, or too few seeds for an interval."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return tuple(columns[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def _markdown(columns: Columns, rows: Rows) -> str:
    columns, rows = _without_empty(columns, rows)
    rule = tuple("---" if column in LEFT else "---:" for column in columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, rule, *rows])


def _bullets(lines: list[str]) -> list[str]:
    return ["\n".join(f"- {line}" for line in lines)] if lines else []
