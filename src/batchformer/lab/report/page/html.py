"""Write one self-contained HTML page: verdicts, tables, figures, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer.insight.figures.text import number, seeds, signed
from batchformer.insight.files import write_atomically
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.insight.page.explorer import script_policy
from batchformer.insight.page.html import Section, path_of_page, typeset
from batchformer.insight.page.html import environment as shared_environment
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER
from batchformer.lab.report.page.sections import pooled_parts, sections_of, sweep_section
from batchformer.lab.report.results import words
from batchformer.lab.report.results.comparison import Difference, RecipeComparison, compare_runs
from batchformer.lab.report.results.configuration import RunGroup, settings
from batchformer.lab.report.results.names import (
    ARMS,
    LOWER_IS_BETTER,
    MEANINGS,
    UNTESTED,
    arm_colours,
    decimals,
    in_words,
    metric_label,
    sorted_metrics,
)
from batchformer.lab.report.results.pooling import pool_recipes
from batchformer.lab.report.results.provenance import provenance
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.report.results.sweep_tables import level_name, sweep_headline, sweep_notes
from batchformer.lab.report.results.sweeps import SweepComparison, compare_sweep, split_sweeps
from batchformer.lab.report.results.tables import pooled_notes

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "page.html.jinja"
TITLE = "BatchFormer, arm against arm"
SWEEPS_TITLE = "BatchFormer, level by level"


@dataclass(frozen=True)
class Part:
    """One recipe or one sweep on the page."""

    anchor: str
    comparison: RecipeComparison | SweepComparison
    reach: float  # half the width of its strips, in percentage points
    sections: list[Section]
    settings: dict[str, str]
    provenance: dict[str, list[str]]


def write_page(
    runs: Iterable[RecordedRun],
    path: str | Path,
    title: str | None = None,
    reference: str | None = None,
    *,
    pooled: bool = False,
) -> Path:
    """Write the page for these runs of any recipes. If that fails, an old page stays.

    Damaged and unfinished runs are named at its end. The ``reference`` is by default that of
    ``compare_runs``; ``pooled`` adds the effects over all recipes.
    """
    path = path_of_page(path)
    write_atomically(path, render(runs, title, reference, pooled=pooled).encode())
    return path


def render(
    runs: Iterable[RecordedRun],
    title: str | None = None,
    reference: str | None = None,
    *,
    pooled: bool = False,
) -> str:
    """The page as text. By default its title is the name of its only recipe."""
    runs = list(runs)
    sweeps, others = split_sweeps(runs)
    comparison = compare_runs(others, reference)
    headlines = [recipe.main_difference for recipe in comparison.recipes]
    main_reach = _reach(d for d in headlines if d is not None and d.outcome is not None)
    parts = [_part(recipe, i) for i, recipe in enumerate(comparison.recipes)]
    shown = [_sweep_part(compare_sweep(sweep), i) for i, sweep in enumerate(sweeps)]
    if title is None:
        title = TITLE if parts or not sweeps else SWEEPS_TITLE
        title = comparison.recipes[0].name if len(parts) == 1 and not sweeps else title
    effects = pool_recipes(comparison, [sweep.name for sweep in sweeps]) if pooled else None
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=title,
            policy=script_policy([section for part in parts for section in part.sections]),
            comparison=comparison,
            parts=parts,
            main_reach=main_reach,
            pooled=pooled,
            pooled_parts=pooled_parts(effects) if effects else [],
            pooled_notes=pooled_notes(effects) if effects else [],
            sweeps=shown,
            level_name=level_name,
            sweep_headline=sweep_headline,
            not_in_the_paper=NOT_IN_THE_PAPER,
            sweep_notes=sweep_notes,
            runs=runs,
            finished=[run for run in runs if run.state == "finished"],
            colours=arm_colours(run.arm for run in runs),
            about=ARMS,
            lower_is_better=LOWER_IS_BETTER,
            untested=UNTESTED,
            decimals=decimals,
            fewest=FEWEST_SEEDS,
            words=words,
            **_explained([*parts, *shown]),
        )
    )


def _explained(parts: Sequence[Part]) -> dict[str, Any]:
    """What the page has to explain: metrics, shot groups and the paper, if they are shown."""
    found = [part.comparison for part in parts]
    metrics = sorted_metrics(metric for comparison in found for metric in comparison.metrics)
    scores = [score for comparison in found for score in comparison.scores.values()]
    shots = {"many", "medium", "few"} & set(metrics)
    noted = all(part.settings.get("data.shots") == "thirds" for part in parts)
    return {
        "meanings": {metric_label(name): MEANINGS[name] for name in metrics if name in MEANINGS},
        "shots": bool(shots) and not noted,
        "from_paper": any(score.paper is not None for score in scores),
    }


def environment() -> Environment:
    """Templates of this folder and those that all pages share, with their filters."""
    made = shared_environment("batchformer.lab.report")
    made.filters |= {
        "number": lambda *args: typeset(number(*args)),
        "signed": lambda *args: typeset(signed(*args)),
        "p_value": words.p_value,
        "place": place,
        "metric": metric_label,
        "seeds": seeds,
        "in_words": in_words,
    }
    return made


def _part(recipe: RecipeComparison, index: int) -> Part:
    anchor = f"recipe-{index + 1}"
    # Metrics that are not tested get no strip: most of them are not in percent.
    tested = (d for d in recipe.differences.values() if d.outcome is not None)
    return Part(
        anchor,
        recipe,
        _reach(tested),
        sections_of(recipe.group, anchor),
        settings(recipe.group),
        provenance(recipe.group.runs),
    )


def _sweep_part(found: SweepComparison, index: int) -> Part:
    anchor, runs = f"sweep-{index + 1}", found.sweep.finished
    figure = sweep_section(found, anchor)
    return Part(
        anchor,
        found,
        _reach(found.differences),
        [] if figure is None else [figure],
        settings(RunGroup(found.sweep.name, runs)) if runs else {},
        provenance(runs),
    )


def _reach(differences: Iterable[Difference]) -> float:
    """Half the width of strips that share a scale, in percentage points."""
    found = [(d.paired, d.paper_effect) for d in differences]
    ends = [end for p, paper in found for end in (p.low, p.high, p.difference, paper)]
    return 1.1 * max([*(abs(end) for end in ends if end is not None), 0.1])


def place(value: float, reach: float) -> float:
    """Where a value stands in a strip, in percent of the width from -reach to +reach."""
    return round(50 + 50 * value / reach, 2)
