"""Sweeps as text for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchformer.insight.figures.text import number
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.config.arms import BASELINE, MAIN
from batchformer.lab.report.results import words
from batchformer.lab.report.results.comparison import Difference, Score
from batchformer.lab.report.results.names import LOWER_IS_BETTER, metric_label
from batchformer.lab.report.results.sweeps import Cell, SweepComparison
from batchformer.lab.report.results.tables import (
    DIFFERENCE_COLUMNS,
    SCORE_COLUMNS,
    Rows,
    Terminal,
    difference_cells,
    score_cells,
)

if TYPE_CHECKING:
    from rich.console import Console

ANY_LEVEL = "any"  # what is shown as the level of a shared baseline


def print_sweep(comparison: SweepComparison, console: Console | None = None) -> None:
    """Print each level, then the differences, then the notes."""
    out, sweep = Terminal(console), comparison.sweep
    out.say(f"\n{sweep.name}", "bold")
    out.say(sweep_headline(comparison))
    label = metric_label(comparison.metric)
    if comparison.cells:
        out.show(
            f"{label} by {sweep.factor}", ("level", *SCORE_COLUMNS[1:]), level_rows(comparison)
        )
    for caption, differences in (
        (f"{label}, difference to {sweep.factor} {sweep.reference}", comparison.to_reference),
        (f"{label}, difference to the baseline", comparison.to_baseline),
    ):
        if differences:
            columns = ("level", "arm", *DIFFERENCE_COLUMNS[1:])
            out.show(caption, columns, level_difference_rows(differences))
    if len(comparison.metrics) > 1:
        names = tuple(metric_label(metric) for metric in comparison.metrics[1:])
        out.show(_other_caption(comparison), ("level", "arm", *names), other_rows(comparison))
    out.say("\n" + "\n".join(sweep_notes(comparison)))


def level_rows(comparison: SweepComparison) -> Rows:
    """One row per level and arm: level, arm, n, mean, sd, 95% interval, paper."""
    return [
        (level_name(comparison, (arm, level)), arm, *score_cells(score))
        for ((arm, level), metric), score in comparison.scores.items()
        if metric == comparison.metric
    ]


def level_difference_rows(differences: Mapping[Cell, Difference]) -> Rows:
    """One row per level and arm: level, arm, difference, interval, p, Holm, paper, verdict."""
    return [
        (level, arm, *difference_cells(difference))
        for (arm, level), difference in differences.items()
    ]


def other_rows(comparison: SweepComparison) -> Rows:
    """One row per level and arm: mean and sd of the metrics that are not tested."""
    return [
        (
            level_name(comparison, cell),
            cell[0],
            *(_other_cell(comparison.scores.get((cell, m))) for m in comparison.metrics[1:]),
        )
        for cell in comparison.cells
    ]


def _other_cell(score: Score | None) -> str:
    if score is None:
        return ""
    found, paper = score.summary, "" if score.paper is None else f" ({number(score.paper, 1)})"
    if found.n < FEWEST_SEEDS or found.sd is None:
        return words.values_of(score) + paper
    return f"{number(found.mean, score.decimals)} ±{number(found.sd, score.decimals)}{paper}"


def _other_caption(comparison: SweepComparison) -> str:
    """What the cells of the other metrics show, and for which of them lower is better."""
    others = comparison.metrics[1:]
    shown = [score for (_, metric), score in comparison.scores.items() if metric in others]
    parts = ["Other metrics"]
    if any(score.summary.n >= FEWEST_SEEDS for score in shown):
        parts.append("mean ±sd over seeds")
    if any(score.paper is not None for score in shown):
        parts.append("the paper's in brackets")
    lower = [metric_label(metric) for metric in others if metric in LOWER_IS_BETTER]
    better = f"; lower is better for {' and '.join(lower)}" if lower else ""
    return f"{', '.join(parts)}; not tested{better}"


def level_name(comparison: SweepComparison, cell: Cell) -> str:
    """The level of a cell as shown; a shared baseline belongs to any level."""
    arm, level = cell
    return ANY_LEVEL if comparison.sweep.shared_baseline and arm == BASELINE else level


def sweep_headline(comparison: SweepComparison) -> str:
    """Which levels differ from the reference, in a sentence."""
    sweep, label = comparison.sweep, metric_label(comparison.metric)
    found = {cell: d for cell, d in comparison.to_reference.items() if cell[0] != BASELINE}
    if not found:
        return f"No level shares a finished seed with {sweep.factor} {sweep.reference} yet."
    if any(difference.outcome is None for difference in found.values()):
        return f"{label} is not tested; a note says why. There is no verdict on a level."
    tested = {cell: d for cell, d in found.items() if d.paired.n >= FEWEST_SEEDS}
    if not tested:
        return f"Too few seeds for a verdict on {sweep.factor}: an interval needs {FEWEST_SEEDS}."
    against = f"{sweep.factor} {sweep.reference}"
    sentences = []
    by_verdict = words.by_verdict(tested)
    if significant := by_verdict["gain"] | by_verdict["loss"]:
        sentences.append(f"Reliable after correction: {_listed_levels(significant)}.")
    if undone := by_verdict["uncorrected"]:
        they = "it is" if len(undone) == 1 else "they are"
        sentences.append(
            f"Reliable only without correction: {_listed_levels(undone)}; after Holm's correction "
            f"for the {comparison.tested} tests of the sweep, {they} not significant."
        )
    if noise := by_verdict["not reliable"]:
        sentences.append(f"No reliable difference: {_listed_levels(noise)}.")
    if flat := by_verdict["no spread"]:
        sentences.append(f"Without spread, and so without verdict: {_listed_levels(flat)}.")
    return " ".join([*sentences, f"In percentage points of {label}, compared with {against}."])


def _listed_levels(differences: Mapping[Cell, Difference]) -> str:
    return "; ".join(
        f"level {level}{'' if arm == MAIN else f' ({arm})'} {words.with_interval(d.paired)}"
        for (arm, level), d in differences.items()
    )


def sweep_notes(comparison: SweepComparison) -> list[str]:
    """How many comparisons were corrected for, and what is missing or doubtful."""
    lines = [words.counted(comparison.compared, comparison.tested, "This sweep")]
    if comparison.tested:
        lines.append(f"{words.INTERVAL} Differences are over the seeds that both sides share.")
    lines += [f"Note: {line}." for line in comparison.warnings]
    return lines + [f"Not included: {line}." for line in comparison.left_out]
