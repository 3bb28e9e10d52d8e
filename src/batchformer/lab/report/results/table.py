"""The comparison as text: for a terminal, for a pipe, and for a Markdown page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchformer.lab.metrics.intervals import FEWEST_SEEDS
from batchformer.lab.report.results.names import metric_label
from batchformer.lab.report.results.results import Comparison, Difference, RecipeComparison, Score
from batchformer.lab.report.results.terminal import LEFT, Columns, Rows, Terminal, without_empty
from batchformer.lab.report.results.words import (
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

SCORE_COLUMNS = ("metric", "arm", "n", "mean", "sd", "95% interval", "paper")
DIFFERENCE_COLUMNS = ("metric", "diff.", "95% interval", "p", "Holm", "paper", "verdict")


def print_table(comparison: Comparison, console: Console | None = None) -> None:
    """Print each arm, then each arm's difference to the reference, recipe by recipe."""
    out = Terminal(console)
    for recipe in comparison.recipes:
        out.say(f"\n{recipe.name}", "bold")
        out.say(headline(recipe, comparison.comparisons))
        out.show("Each arm", SCORE_COLUMNS, score_rows(recipe))
        for arm in recipe.others:
            caption = f"{arm} - {recipe.reference}"
            out.show(caption, DIFFERENCE_COLUMNS, difference_rows(recipe, arm))
        out.say("\n" + "\n".join(_below(recipe)))
    out.say("\n" + "\n".join(_closing(comparison)))


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
            rows.append((name, arm, *score_cells(recipe.scores[arm, metric])))
    return rows


def difference_rows(recipe: RecipeComparison, arm: str) -> Rows:
    """One row per metric, in the order of ``DIFFERENCE_COLUMNS``."""
    return [
        (metric_label(metric), *difference_cells(recipe.differences[arm, metric]))
        for metric in recipe.metrics
        if (arm, metric) in recipe.differences
    ]


def score_cells(score: Score) -> tuple[str, ...]:
    """Cells from ``n`` to ``paper`` of ``SCORE_COLUMNS``."""
    found, paper = score.summary, "" if score.paper is None else number(score.paper, 1)
    if found.n < FEWEST_SEEDS or found.sd is None:
        return str(found.n), values_of(score), "", "", paper
    return (
        str(found.n),
        number(found.mean, score.decimals),
        number(found.sd, score.decimals),
        interval(found.low, found.high, decimals=score.decimals),
        paper,
    )


def difference_cells(difference: Difference) -> tuple[str, ...]:
    """Cells from ``diff.`` to ``verdict`` of ``DIFFERENCE_COLUMNS``."""
    result, effect = difference.paired, difference.paper_effect
    paper = "" if effect is None else signed(effect, 1)
    if result.n < FEWEST_SEEDS:
        return differences_of(difference), "", "", "", paper, short_verdict(difference)
    return (
        signed(result.difference, difference.decimals),
        interval(result.low, result.high, sign=True, decimals=difference.decimals),
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


def _markdown(columns: Columns, rows: Rows) -> str:
    columns, rows = without_empty(columns, rows)
    rule = tuple("---" if column in LEFT else "---:" for column in columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, rule, *rows])


def _bullets(lines: list[str]) -> list[str]:
    return ["\n".join(f"- {line}" for line in lines)] if lines else []
