"""Several recipes taken together, as text: each effect over all of them, then recipe by recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchformer.lab.report.results.names import LOWER_IS_BETTER, in_words, metric_label
from batchformer.lab.report.results.pooling import Effect, Together
from batchformer.lab.report.results.terminal import Columns, Rows, Terminal
from batchformer.lab.report.results.words import interval, outcome_words, p_value, signed

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("metric", "of", "diff.", "95% interval", "p", "Holm", "same", "paper", "verdict")

READING = (
    "Each recipe counts once, however many seeds it has. The 95% interval is the wider of two, one "
    "from the spread of seeds inside the recipes, one from that of the recipes' effects.",
    "Seeds of different recipes are taken as independent. What all recipes share, such as the "
    "images of one data set, is in no interval.",
)
SAME = (
    "same is the p-value of one effect in all recipes: small where they differ by more than their "
    "seeds do."
)
OF = "of is the number of recipes that have a metric, where others have more."


def print_together(together: Together, console: Console | None = None) -> None:
    """Print the effects over all recipes, then those of each, then what was left out."""
    out = Terminal(console)
    out.say("\nTaken together", "bold")
    if not together.effects:
        out.say("No two recipes have an arm, its reference and a metric in common.")
    for arm, reference in together.pairs:
        effects = together.of(arm, reference)
        out.say(together_headline(arm, reference, effects))
        out.show(f"{arm} - {reference}, over recipes", COLUMNS, effect_rows(effects))
        columns, rows = by_recipe(effects, out.width)
        out.show(f"{arm} - {reference}, recipe by recipe", columns, rows)
    out.say("\n" + "\n".join(together_notes(together)))


def effect_rows(effects: Mapping[str, Effect]) -> Rows:
    """One row per metric, in the order of ``COLUMNS``."""
    counts = {effect.pooled.setups for effect in effects.values()}
    return [
        (
            metric_label(metric),
            "" if effect.pooled.setups == max(counts) else str(effect.pooled.setups),
            *effect_cells(effect, wide=len(counts) > 1),
        )
        for metric, effect in effects.items()
    ]


def effect_cells(effect: Effect, wide: bool = False) -> tuple[str, ...]:
    """Cells from ``diff.`` to ``verdict`` of ``COLUMNS``; a wide table does without ``same``."""
    found = effect.pooled
    return (
        signed(found.difference),
        interval(found.low, found.high, sign=True),
        p_value(found.p_value),
        p_value(effect.adjusted),
        "" if wide else p_value(found.alike),
        "" if effect.paper is None else signed(effect.paper, 1),
        outcome_words(effect.outcome, effect.stands),
    )


def by_recipe(effects: Mapping[str, Effect], width: int) -> tuple[Columns, Rows]:
    """A row per recipe with its differences, or where that is too wide one per metric and recipe.

    Args:
        effects: by metric.
        width: columns of a terminal.
    """
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
    """One row per recipe: its name, its most seeds, and its difference on each metric."""
    names = dict.fromkeys(name for effect in effects.values() for name in effect.recipes)
    rows: Rows = []
    for name in names:
        own = [effect.recipes.get(name) for effect in effects.values()]
        seeds = max(d.paired.n for d in own if d is not None)
        cells = ("" if d is None else signed(d.paired.difference) for d in own)
        rows.append((name, str(seeds), *cells))
    return rows


def together_headline(arm: str, reference: str, effects: Mapping[str, Effect]) -> str:
    """What stands over all recipes, what does not, in a few sentences."""
    widest = max((effect.pooled for effect in effects.values()), key=lambda found: found.setups)
    compared = "" if reference == "baseline" else f" compared with {in_words(reference)}"
    sentences = [f"{arm}{compared}, {widest.setups} recipes, {widest.seeds} paired seeds."]
    for word in ("gain", "loss"):
        found = {m: e for m, e in effects.items() if e.outcome == word and e.stands}
        sentences += [f"A {word} on {_listed(found)}."] if found else []
    undone = {m: e for m, e in effects.items() if e.outcome in ("gain", "loss") and not e.stands}
    if undone:
        they = "it does" if len(undone) == 1 else "they do"
        sentences.append(f"Uncorrected alone: {_listed(undone)}; after Holm's {they} not stand.")
    noise = {m: e for m, e in effects.items() if e.outcome == "inside the noise"}
    sentences += [f"Inside the noise: {_listed(noise)}."] if noise else []
    without = [metric_label(m) for m, e in effects.items() if e.outcome == "no spread"]
    sentences += (
        [f"Without spread, and so without verdict: {', '.join(without)}."] if without else []
    )
    return " ".join(sentences)


def together_notes(together: Together) -> list[str]:
    """How to read the tables, how many effects are tested, and what is not in them."""
    lines = []
    if together.effects:
        tested = sum(effect.pooled.p_value is not None for effect in together.effects.values())
        if tested > 1:
            lines.append(f"Holm's p-values are corrected over all {tested} effects taken together.")
        lines += READING
        lines.append(OF if _counts_differ(together) else SAME)
        printed = {effect.printed for effect in together.effects.values() if effect.printed}
        if printed:
            count = " or ".join(map(str, sorted(printed)))
            lines.append(f"The paper's is its mean over the recipes it has numbers for ({count}).")
    return lines + [f"Not pooled: {line}." for line in together.left_out]


def _counts_differ(together: Together) -> bool:
    return len({effect.pooled.setups for effect in together.effects.values()}) > 1


def _listed(effects: Mapping[str, Effect]) -> str:
    return "; ".join(
        f"{metric_label(metric)} {signed(effect.pooled.difference)} "
        f"{interval(effect.pooled.low, effect.pooled.high, sign=True)}"
        + (", where lower is better" if metric in LOWER_IS_BETTER else "")
        for metric, effect in effects.items()
    )
