"""The figures of a recipe's part of the page. A further figure is one line in ``SECTIONS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batchformer.bench.table import read_tables
from batchformer.metrics.intervals import FEWEST_SEEDS
from batchformer.report.bias_curve import bias_curves, bias_figure
from batchformer.report.canvas import inline_svg
from batchformer.report.configuration import Group
from batchformer.report.curves import evaluated_metric, training_curves
from batchformer.report.names import in_words, metric_label
from batchformer.report.per_class import by_class, figure_of
from batchformer.report.speed import bench_beside, tables_html
from batchformer.report.sweep_comparison import SweepComparison
from batchformer.report.sweep_figure import described, sweep_figure
from batchformer.report.words import seeds


@dataclass(frozen=True)
class Section:
    """One figure of the page.

    Args:
        title: its heading.
        html: the figure itself, trusted markup without references to other files.
        note: what is plotted and over how many seeds.
    """

    title: str
    html: str
    note: str


def curves_section(group: Group, prefix: str) -> Section | None:
    """Training curves, where anything was logged."""
    if not any(run.series("train", "loss") for run in group.runs):
        return None
    metric = evaluated_metric(group.runs)
    evaluated = "" if metric is None else f" and evaluated {metric_label(metric)}"
    note = (
        f"Training loss{evaluated} by update. Lines are means over seeds ({_counts(group)}); bands "
        f"run from the lowest to the highest seed. The loss with BatchFormer covers both streams, "
        f"so losses of different arms need not be comparable."
    )
    figure = training_curves(group.runs, group.reference)
    svg = inline_svg(figure, f"Line plot. {note}", f"{prefix}-curves")
    return Section("Training", svg, note)


def classes_section(group: Group, prefix: str) -> Section | None:
    """Accuracy by class, where it was kept."""
    data = by_class(group.runs, group.reference)
    if data is None:
        return None
    over = ", ".join(f"{arm} {n}" for arm, n in data.seeds.items())
    points = "class" if data.together == 1 else f"group of up to {data.together} classes"
    note = (
        f"{data.classes:,} classes from the most to the least training images, one point a "
        f"{points}: accuracy, mean over seeds ({over})"
    )
    if data.differences:
        note += f", and the difference to {in_words(group.reference)} on the same seeds"
        fewest = min(data.paired_seeds.values())
        if fewest < FEWEST_SEEDS:
            note += f", without intervals, since an arm shares only {seeds(fewest)} with it"
        else:
            chance = len(data.counts) / 20
            note += (
                f" with its 95% t interval. Each interval is for its point alone: by chance about "
                f"{chance:.0f} of {len(data.counts)} would miss 0"
                if chance >= 1
                else " with its 95% t interval, each for its point alone"
            )
    svg = inline_svg(figure_of(data), f"Dot plot. {note}.", f"{prefix}-classes")
    return Section("Accuracy by class", svg, f"{note}.")


def bias_section(group: Group, prefix: str) -> Section | None:
    """Seen against unseen pairs, where a bias was swept."""
    curves = bias_curves(group.runs)
    if curves is None:
        return None
    over = ", ".join(f"{arm} {len(each)}" for arm, each in curves.by_arm.items())
    note = (
        f"A bias on the scores of unseen pairs moves predictions from seen pairs to unseen ones. "
        f"Thin lines are seeds, thick ones their means ({over}); the area below is the AUC."
    )
    svg = inline_svg(bias_figure(curves), f"Line plot. {note}", f"{prefix}-bias")
    return Section("Seen and unseen pairs", svg, note)


def speed_section(group: Group, prefix: str) -> Section | None:
    """The tables of ``batchformer bench``, where its file lies beside the runs."""
    path = bench_beside(group.runs)
    if path is None:
        return None
    try:
        tables = read_tables(path)
    except ValueError as error:
        return Section("Speed", "", f"Not shown: {error}.")
    note = (
        "Measured by batchformer bench, not by these runs. Candidates of a table take turns in "
        "rounds; each number is a median over the rounds, with its quartiles in brackets, and "
        "ratios are of the same round."
    )
    return Section("Speed", tables_html(tables), note)


def sweep_section(found: SweepComparison, prefix: str) -> Section | None:
    """A sweep's metric against its levels, where a run has finished."""
    if not found.cells:
        return None
    sweep = found.sweep
    label = metric_label(found.metric)
    note = (
        f"{label} by {sweep.factor}: small dots are seeds, larger marks their means, bars the "
        f"95% t intervals of the means, where there are {FEWEST_SEEDS} seeds"
    )
    if sweep.shared_baseline:
        note += "; the broken line and its band are the baseline, which no level changes"
    if any(score.paper is not None for score in found.scores.values()):
        note += "; dotted, with hollow marks, the paper's numbers"
    note += ". Levels stand at equal distances."
    description = f"Dot plot. {note} {described(found)}."
    return Section(
        f"{label} by {sweep.factor}",
        inline_svg(sweep_figure(found), description, f"{prefix}-levels"),
        note,
    )


SECTIONS: tuple[Callable[[Group, str], Section | None], ...] = (
    curves_section,
    classes_section,
    bias_section,
    speed_section,
)
"""What is drawn for a group of runs, in this order; None leaves a figure out."""


def sections_of(group: Group, prefix: str) -> list[Section]:
    """Every figure these runs have the numbers for; ``prefix`` keeps ids unique on the page."""
    made = (make(group, prefix) for make in SECTIONS)
    return [section for section in made if section is not None]


def _counts(group: Group) -> str:
    return ", ".join(f"{arm} {len(group.of(arm))}" for arm in group.arms)
