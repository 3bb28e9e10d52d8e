"""Several recipes taken together, as text: each effect over all of them, then recipe by recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchformer.report.names import LOWER_IS_BETTER, in_words, metric_label
from batchformer.report.pooling import Effect, Together
from batchformer.report.terminal import Rows, Terminal
from batchformer.report.words import interval, outcome_words, p_value, signed

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("metric", "diff.", "95% interval", "p", "Holm", "same", "paper", "verdict")

READING = (
    "Each recipe counts once, however many seeds it has. The 95% interval is the wider of two, one "
    "from the spread of seeds inside the recipes, one from that of the recipes' effects.",
    "same is the p-value of one effect in all recipes: small where they differ by more than their "
    "seeds do.",
    "Seeds of different recipes are taken as independent. What all recipes share, such as the "
    "images of one data set, is in no interval.",
)


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
        columns = ("recipe", "n", *map(metric_label, effects))
        out.show(f"{arm} - {reference}, recipe by recipe", columns, recipe_rows(effects))
    out.say("\n" + "\n".join(together_notes(together)))


def effect_rows(effects: Mapping[str, Effect]) -> Rows:
    """One row per metric, in the order of ``COLUMNS``."""
    return [(metric_label(metric), *effect_cells(effect)) for metric, effect in effects.items()]


def effect_cells(effect: Effect) -> tuple[str, ...]:
    """Cells from ``diff.`` to ``verdict`` of ``COLUMNS``."""
    found = effect.pooled
    return (
        signed(found.difference),
        interval(found.low, found.high, sign=True),
        p_value(found.p_value),
        p_value(effect.adjusted),
        p_value(found.alike),
        "" if effect.paper is None else signed(effect.paper, 1),
        outcome_words(effect.outcome, effect.stands),
    )


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
        sentences.append(f"Uncorrected alone, {_listed(undone)}: after Holm's it does not stand.")
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
        printed = {effect.printed for effect in together.effects.values() if effect.printed}
        if printed:
            count = " or ".join(map(str, sorted(printed)))
            lines.append(f"The paper's is its mean over the recipes it has numbers for ({count}).")
    return lines + [f"Not pooled: {line}." for line in together.left_out]


def _listed(effects: Mapping[str, Effect]) -> str:
    return "; ".join(
        f"{metric_label(metric)} {signed(effect.pooled.difference)} "
        f"{interval(effect.pooled.low, effect.pooled.high, sign=True)}"
        + (", where lower is better" if metric in LOWER_IS_BETTER else "")
        for metric, effect in effects.items()
    )
