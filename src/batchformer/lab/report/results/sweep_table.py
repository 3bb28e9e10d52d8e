"""A sweep as text: each level, its difference to the reference level and to the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchformer.lab.metrics.intervals import FEWEST_SEEDS
from batchformer.lab.report.results.names import BASELINE, LOWER_IS_BETTER, metric_label
from batchformer.lab.report.results.results import Difference, Score
from batchformer.lab.report.results.sweep_comparison import Cell, SweepComparison
from batchformer.lab.report.results.table import (
    DIFFERENCE_COLUMNS,
    SCORE_COLUMNS,
    difference_cells,
    score_cells,
)
from batchformer.lab.report.results.terminal import Rows, Terminal
from batchformer.lab.report.results.words import INTERVAL, interval, number, signed, values_of

if TYPE_CHECKING:
    from rich.console import Console

ANY_LEVEL = "any"
"""What a shared baseline has in the column of levels."""


def print_sweep(comparison: SweepComparison, console: Console | None = None) -> None:
    """Print each level, then the differences, then what the tables cannot hold."""
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
            out.show(caption, columns, difference_rows(differences))
    if len(comparison.metrics) > 1:
        names = tuple(metric_label(metric) for metric in comparison.metrics[1:])
        out.show(_other_caption(comparison), ("level", "arm", *names), other_rows(comparison))
    out.say("\n" + "\n".join(sweep_notes(comparison)))


def level_rows(comparison: SweepComparison) -> Rows:
    """One row per level and arm: level, arm, n, mean, sd, 95% interval, paper."""
    return [
        (level_name(comparison, cell), cell[0], *score_cells(comparison.scores[cell, metric]))
        for metric in [comparison.metric]
        for cell in comparison.cells
    ]


def difference_rows(differences: Mapping[Cell, Difference]) -> Rows:
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
        return values_of(score) + paper
    return f"{number(found.mean, score.decimals)} ±{number(found.sd, score.decimals)}{paper}"


def _other_caption(comparison: SweepComparison) -> str:
    """What the cells of the other metrics hold, and of which a lower value is the better."""
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
    """The level of a cell; a shared baseline stands for all."""
    arm, level = cell
    return ANY_LEVEL if comparison.sweep.shared_baseline and arm == BASELINE else level


def sweep_headline(comparison: SweepComparison) -> str:
    """Which levels differ from the reference, in a sentence."""
    sweep, label = comparison.sweep, metric_label(comparison.metric)
    found = {cell: d for cell, d in comparison.to_reference.items() if cell[0] != BASELINE}
    if not found:
        return f"No level shares a finished seed with {sweep.factor} {sweep.reference} yet."
    if any(difference.outcome is None for difference in found.values()):
        return f"{label} describes features and is not tested: there is no verdict on a level."
    tested = {cell: d for cell, d in found.items() if d.paired.n >= FEWEST_SEEDS}
    if not tested:
        return f"Too few seeds for a verdict on {sweep.factor}: an interval needs {FEWEST_SEEDS}."
    against = f"{sweep.factor} {sweep.reference}"
    sentences = [f"Points of {label} compared with {against}."]
    standing = {cell: d for cell, d in tested.items() if d.outcome in ("gain", "loss") and d.stands}
    undone = {
        cell: d for cell, d in tested.items() if d.outcome in ("gain", "loss") and not d.stands
    }
    if standing:
        sentences.append(f"After correction: {_listed(standing)}.")
    if undone:
        sentences.append(
            f"Uncorrected alone: {_listed(undone)}; corrected for the {comparison.tested} tests of "
            f"the sweep, {'it does' if len(undone) == 1 else 'they do'} not stand."
        )
    noise = {cell: d for cell, d in tested.items() if d.outcome == "inside the noise"}
    if noise:
        sentences.append(f"Inside the noise: {_listed(noise)}.")
    flat = {cell: d for cell, d in tested.items() if d.outcome == "no spread"}
    if flat:
        sentences.append(f"Without spread, and so without verdict: {_listed(flat)}.")
    return " ".join(sentences)


def _listed(differences: Mapping[Cell, Difference]) -> str:
    return "; ".join(
        f"{level}{'' if arm == 'batchformer' else f' ({arm})'} {signed(d.paired.difference)} "
        f"{interval(d.paired.low, d.paired.high, sign=True)}".strip()
        for (arm, level), d in differences.items()
    )


def sweep_notes(comparison: SweepComparison) -> list[str]:
    """How many comparisons there are and what was done about it; what is missing or doubtful."""
    count, tested = comparison.compared, comparison.tested
    text = f"This sweep holds {count} comparison{'s' * (count != 1)}"
    if tested < count:
        text += f", {tested or 'none'} of them tested"
    lines = [text + "."]
    if tested > 1:
        lines = [f"{text}; Holm's p-values are corrected over all {tested} tests."]
    if tested:
        lines.append(f"{INTERVAL} Differences are over the seeds that both sides share.")
    lines += [f"Note: {line}." for line in comparison.warnings]
    return lines + [f"Not included: {line}." for line in comparison.left_out]
