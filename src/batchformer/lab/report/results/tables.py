"""Comparisons and pooled effects as text for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchformer.insight.figures.captioned import without_empty
from batchformer.insight.figures.text import interval, number, signed
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.insight.optional import extra
from batchformer.lab.config.arms import BASELINE
from batchformer.lab.report.results import words
from batchformer.lab.report.results.comparison import (
    Comparison,
    Difference,
    RecipeComparison,
    Score,
)
from batchformer.lab.report.results.names import LOWER_IS_BETTER, in_words, metric_label
from batchformer.lab.report.results.pooling import Effect, PooledEffects

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 120  # columns; 80 are enough for every cell to stay on one line
LEFT = frozenset({"metric", "level", "arm", "recipe", "attends to", "verdict"})
Columns = tuple[str, ...]
Rows = list[tuple[str, ...]]


class Terminal:
    """Prints text without interpreting markup, by default on the standard output."""

    def __init__(self, console: Console | None = None) -> None:
        with extra("lab"):
            from rich.console import Console as RichConsole

        self.console = console or RichConsole()
        self.width = min(self.console.width, WIDEST)

    def say(self, text: str, style: str = "") -> None:
        """Print a paragraph."""
        self.console.print(text, style=style, markup=False, highlight=False, width=self.width)

    def show(self, caption: str, columns: Columns, rows: Rows) -> None:
        """Print a table without its empty columns."""
        with extra("lab"):
            from rich import box
            from rich.table import Table
            from rich.text import Text

        self.say(f"\n{caption}", "bold")
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        columns, rows = without_empty(columns, rows)
        for column in columns:
            table.add_column(Text(column), justify="left" if column in LEFT else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        self.console.print(table, width=self.width)


SCORE_COLUMNS = ("metric", "arm", "n", "mean", "sd", "95% interval", "paper")
DIFFERENCE_COLUMNS = ("metric", "diff.", "95% interval", "p", "Holm", "paper", "verdict")


def print_table(comparison: Comparison, console: Console | None = None) -> None:
    """Print each arm, then each arm's difference to the reference, recipe by recipe."""
    out = Terminal(console)
    for recipe in comparison.recipes:
        out.say(f"\n{recipe.name}", "bold")
        out.say(words.headline(recipe, comparison.tested))
        out.show("Each arm", SCORE_COLUMNS, score_rows(recipe))
        for arm in recipe.others:
            caption = f"{arm} - {recipe.reference}"
            out.show(caption, DIFFERENCE_COLUMNS, difference_rows(recipe, arm))
        below = [words.paper_sentence(recipe, arm) for arm in recipe.others]
        below += [words.over_images_sentence(recipe), *(f"Note: {w}." for w in recipe.warnings)]
        if any(below):
            out.say("\n" + "\n".join(filter(None, below)))
    lines = [words.counted(comparison.comparisons, comparison.tested)]
    if comparison.tested:
        lines.append(f"{words.INTERVAL} The interval of a gain or a loss does not contain 0.")
    lines += [f"Not included: {line}." for line in comparison.left_out]
    out.say("\n" + "\n".join(lines + [f"Note: {line}." for line in comparison.remarks]))


def score_rows(recipe: RecipeComparison) -> Rows:
    """One row per metric and arm, in the order of ``SCORE_COLUMNS``; each metric is named once."""
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
        return str(found.n), words.values_of(score), "", "", paper
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
        return words.differences_of(difference), "", "", "", paper, words.short_verdict(difference)
    return (
        signed(result.difference, difference.decimals),
        interval(result.low, result.high, sign=True, decimals=difference.decimals),
        words.p_value(result.p_value),
        words.p_value(difference.adjusted),
        paper,
        words.short_verdict(difference),
    )


# Effects that are pooled over recipes.

COLUMNS = ("metric", "of", "diff.", "95% interval", "p", "Holm", "same", "paper", "verdict")

READING = (
    "Each recipe counts once, however many seeds it has. The 95% interval is the widest of three: "
    "from the spread of seeds inside the recipes, from that of the recipes' effects, and, because "
    "runs of one seed begin alike in all recipes, from that of the means by seed. What all recipes "
    "share, such as the images of one data set, is in no interval."
)
SAME = (
    "same is the p-value of the hypothesis that all recipes have the same effect: it is small "
    "where effects differ by more than seeds explain."
)
OF = "of is the number of recipes that have this metric, if other metrics have more."


def print_pooled(found: PooledEffects, console: Console | None = None) -> None:
    """Print the effects over all recipes, then those of each, then what was left out."""
    out = Terminal(console)
    out.say("\nPooled over recipes", "bold")
    if not found.effects:
        out.say("No two recipes have an arm, its reference and a metric in common.")
    for arm, reference in found.pairs:
        effects = found.of(arm, reference)
        out.say(pooled_headline(arm, reference, effects))
        out.show(f"{arm} - {reference}, over recipes", COLUMNS, effect_rows(effects))
        columns, rows = by_recipe(effects, out.width)
        out.show(f"{arm} - {reference}, recipe by recipe", columns, rows)
    out.say("\n" + "\n".join(pooled_notes(found)))


def effect_rows(effects: Mapping[str, Effect]) -> Rows:
    """One row per metric, in the order of ``COLUMNS``."""
    counts = {effect.pooled.setups for effect in effects.values()}
    rows: Rows = []
    for metric, effect in effects.items():
        found = effect.pooled
        rows.append(
            (
                metric_label(metric),
                "" if found.setups == max(counts) else str(found.setups),
                signed(found.difference),
                interval(found.low, found.high, sign=True),
                words.p_value(found.p_value),
                words.p_value(effect.adjusted),
                # A table that has the column `of` does not have the column `same`.
                words.p_value(found.homogeneity) if len(counts) == 1 else "",
                "" if effect.paper is None else signed(effect.paper, 1),
                words.short_verdict(effect),
            )
        )
    return rows


def by_recipe(effects: Mapping[str, Effect], width: int) -> tuple[Columns, Rows]:
    """A row for each recipe; if that is too wide, one for each metric and recipe."""
    names = {name for effect in effects.values() for name in effect.recipes}
    labels = [metric_label(metric) for metric in effects]
    if max(map(len, names)) + 4 + sum(max(len(label), 6) + 2 for label in labels) <= width:
        return ("recipe", "n", *labels), recipe_rows(effects)
    rows: Rows = []
    for label, effect in zip(labels, effects.values(), strict=True):
        for i, (name, difference) in enumerate(effect.recipes.items()):
            found = difference.paired
            cells = signed(found.difference), interval(found.low, found.high, sign=True)
            rows.append(("" if i else label, name, str(found.n), *cells))
    return ("metric", "recipe", "n", "diff.", "95% interval"), rows


def recipe_rows(effects: Mapping[str, Effect]) -> Rows:
    """One row per recipe: its name, its largest number of seeds, its difference on each metric."""
    names = dict.fromkeys(name for effect in effects.values() for name in effect.recipes)
    rows: Rows = []
    for name in names:
        own = [effect.recipes.get(name) for effect in effects.values()]
        seeds = max(d.paired.n for d in own if d is not None)
        cells = ("" if d is None else signed(d.paired.difference) for d in own)
        rows.append((name, str(seeds), *cells))
    return rows


def pooled_headline(arm: str, reference: str, effects: Mapping[str, Effect]) -> str:
    """Which effects are significant over all recipes and which are not, in a few sentences."""
    widest = max((effect.pooled for effect in effects.values()), key=lambda found: found.setups)
    compared = "" if reference == BASELINE else f" compared with {in_words(reference)}"
    sentences = [f"{arm}{compared}, {widest.setups} recipes, {widest.seeds} paired seeds."]
    by_verdict = words.by_verdict(effects)
    for word in ("gain", "loss"):
        if found := by_verdict[word]:
            sentences.append(f"A {word} on {_listed(found)}.")
    if undone := by_verdict["uncorrected"]:
        they = "it is" if len(undone) == 1 else "they are"
        sentences.append(
            f"Only without correction: {_listed(undone)}; after Holm's {they} not significant."
        )
    if noise := by_verdict["not reliable"]:
        sentences.append(f"No reliable difference: {_listed(noise)}.")
    if without := by_verdict["no spread"]:
        labels = ", ".join(map(metric_label, without))
        sentences.append(f"Without spread, and so without verdict: {labels}.")
    return " ".join(sentences)


def pooled_notes(found: PooledEffects) -> list[str]:
    """How to read the tables, how many effects are tested, and what is not in them."""
    lines = []
    if found.effects:
        tested = sum(effect.pooled.p_value is not None for effect in found.effects.values())
        if tested > 1:
            lines.append(f"Holm's p-values are corrected over all {tested} pooled effects.")
        lines.append(READING)
        counts = {effect.pooled.setups for effect in found.effects.values()}
        lines.append(OF if len(counts) > 1 else SAME)
        printed = {effect.printed for effect in found.effects.values() if effect.printed}
        if printed:
            count = " or ".join(map(str, sorted(printed)))
            lines.append(f"The paper's is its mean over the recipes it has numbers for ({count}).")
    return lines + [f"Not pooled: {line}." for line in found.left_out]


def _listed(effects: Mapping[str, Effect]) -> str:
    return "; ".join(
        f"{metric_label(metric)} {words.with_interval(effect.pooled)}"
        + (", where lower is better" if metric in LOWER_IS_BETTER else "")
        for metric, effect in effects.items()
    )
