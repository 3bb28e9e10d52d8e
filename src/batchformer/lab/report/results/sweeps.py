"""Sweeps: one recipe with one setting at several levels, compared over seeds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from batchformer.lab.config.arms import BASELINE
from batchformer.lab.metrics.intervals import holm
from batchformer.lab.report.results import notes
from batchformer.lab.report.results.comparison import (
    Difference,
    Score,
    by_seed,
    difference_between,
    score_of,
)
from batchformer.lab.report.results.configuration import RunGroup, comparable, differing
from batchformer.lab.report.results.names import (
    UNTESTED,
    main_metric,
    sorted_arms,
    sorted_metrics,
)
from batchformer.lab.report.results.provenance import version_notes
from batchformer.lab.report.results.runs import RecordedRun, headline

NAME = "sweep.json"  # the file above the runs of a sweep that describes it
BESIDE = frozenset({"many", "medium", "few", "ece"}) | UNTESTED
"""Metrics that a sweep shows beside the one that is tested."""
Paper = Mapping[str, Mapping[str, float]]  # the paper's numbers by arm and metric
Cell = tuple[str, str]  # an arm and a level


@dataclass(frozen=True, eq=False)
class SweepRuns:
    """Runs of one recipe with one setting at several levels."""

    name: str
    factor: str  # what is varied, in words
    table: str
    reference: str  # the level that the others are compared with
    shared_baseline: bool  # whether all levels share the reference level's baseline
    paper: Mapping[str, Paper]  # the paper's numbers of every level, in order
    runs: tuple[RecordedRun, ...]  # all that were found, finished or not

    @property
    def finished(self) -> tuple[RecordedRun, ...]:
        return tuple(run for run in self.runs if run.state == "finished")

    @property
    def levels(self) -> list[str]:
        """Levels with a finished run, in the sweep's order."""
        found = {level_of(run) for run in self.finished}
        return [level for level in self.paper if level in found]

    @property
    def arms(self) -> list[str]:
        return sorted_arms(run.arm for run in self.finished)

    def of(self, arm: str, level: str) -> list[RecordedRun]:
        """Finished runs of one arm at one level by seed."""
        found = (run for run in self.finished if (run.arm, level_of(run)) == (arm, level))
        return sorted(found, key=lambda run: run.seed)

    def baseline_of(self, level: str) -> Cell:
        """The baseline that a level is compared with."""
        return BASELINE, self.reference if self.shared_baseline else level


def level_of(run: RecordedRun) -> str:
    """The level, from the folders ``SWEEP/LEVEL/ARM/seedN``."""
    return run.folder.resolve().parents[1].name


def split_sweeps(runs: Iterable[RecordedRun]) -> tuple[list[SweepRuns], list[RecordedRun]]:
    """Sweeps by name, and the runs that belong to none."""
    others: list[RecordedRun] = []
    members: dict[Path, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        parents = run.folder.resolve().parents
        path = parents[2] / NAME if len(parents) > 2 else None
        if path is not None and (path.is_file() or "/" in run.recipe_name):
            members[path].append(run)
        else:
            others.append(run)
    sweeps = []
    for path, found in members.items():
        sweep = _read(path, found)
        known = {} if sweep is None else sweep.paper
        if sweep is not None and all(level_of(run) in known for run in found):
            sweeps.append(sweep)
        else:
            # Without a description the levels are read as recipes.
            lack = "does not describe its levels" if path.is_file() else "is not there"
            remark = f"{path} {lack}; its levels are shown apart and not compared"
            others += [replace(found[0], remarks=(*found[0].remarks, remark)), *found[1:]]
    return sorted(sweeps, key=lambda sweep: sweep.name), others


def _read(path: Path, runs: Iterable[RecordedRun]) -> SweepRuns | None:
    """The sweep that a file describes; None where it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
        sweep = SweepRuns(
            str(content["name"]),
            str(content["factor"]),
            str(content["table"]),
            str(content["reference"]),
            content["baseline"] == "once",
            {
                str(level): {
                    str(arm): {str(metric): float(value) for metric, value in numbers.items()}
                    for arm, numbers in paper.items()
                }
                for level, paper in content["levels"].items()
            },
            tuple(runs),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return sweep if sweep.reference in sweep.paper else None


@dataclass(frozen=True)
class SweepComparison:
    """Every level against the reference level, and against the baseline."""

    sweep: SweepRuns
    metric: str
    metrics: tuple[str, ...]  # the tested one, and those shown beside it without a test
    scores: Mapping[tuple[Cell, str], Score]
    # Each level against the reference level of the same arm
    to_reference: Mapping[Cell, Difference]
    # Each arm against the baseline: the shared one, or that of the same level
    to_baseline: Mapping[Cell, Difference]
    warnings: tuple[str, ...]  # what a reader should know before trusting a number
    left_out: tuple[str, ...]  # runs that are damaged or unfinished

    @property
    def cells(self) -> list[Cell]:
        """Cells with a score: a shared baseline first, then level by level."""
        return [cell for cell, metric in self.scores if metric == self.metric]

    @property
    def differences(self) -> list[Difference]:
        return [*self.to_reference.values(), *self.to_baseline.values()]

    @property
    def compared(self) -> int:
        return sum(difference.outcome is not None for difference in self.differences)

    @property
    def tested(self) -> int:
        return sum(difference.paired.p_value is not None for difference in self.differences)


def compare_sweep(sweep: SweepRuns) -> SweepComparison:
    """Compare every level with the reference level and with the baseline, on the main metric.

    P-values are corrected over all comparisons of the sweep. Other metrics are shown but not
    tested: each test would make the correction stricter for all.
    """
    found = sorted_metrics(
        (name for run in sweep.finished for name in run.scores if run.measured(name) is not None),
        headline(sweep.finished),
    )
    metric = main_metric(found) or "all"
    metrics = (metric, *(name for name in found if name in BESIDE and name != metric))
    values = {
        (cell, name): by_seed(sweep.of(*cell), name) for cell in _cells(sweep) for name in metrics
    }
    scores = {
        (cell, name): score_of(own, name, _paper(sweep, cell, name))
        for (cell, name), own in values.items()
        if own
    }
    cells = [cell for cell, name in scores if name == metric]

    def between(start: Cell, end: Cell) -> Difference | None:
        printed = _paper(sweep, start, metric), _paper(sweep, end, metric)
        before, after = values.get((start, metric), {}), values[end, metric]
        return difference_between(before, after, metric, printed)

    to_reference = {
        (arm, level): difference
        for arm, level in cells
        if level != sweep.reference
        and (difference := between((arm, sweep.reference), (arm, level))) is not None
    }
    to_baseline = {
        (arm, level): difference
        for arm, level in cells
        if arm != BASELINE
        and (difference := between(sweep.baseline_of(level), (arm, level))) is not None
    }
    both = [*to_reference.values(), *to_baseline.values()]
    runs = [run for cell in _cells(sweep) for run in sweep.of(*cell)]
    adjusted = iter(holm([difference.paired.p_value for difference in both]))
    return SweepComparison(
        sweep,
        metric,
        metrics,
        scores,
        {cell: replace(d, adjusted=next(adjusted)) for cell, d in to_reference.items()},
        {cell: replace(d, adjusted=next(adjusted)) for cell, d in to_baseline.items()},
        (
            *notes.unmeasured_notes(runs, metrics, sweep.name, "level"),
            *_configurations(sweep),
            *_seeds(sweep, cells),
            *notes.metric_notes(metrics),
        ),
        notes.left_out(sweep.runs),
    )


def _cells(sweep: SweepRuns) -> list[Cell]:
    if not sweep.shared_baseline:
        return [(arm, level) for level in sweep.levels for arm in sweep.arms]
    others = [arm for arm in sweep.arms if arm != BASELINE]
    shared = [sweep.baseline_of(sweep.reference)]
    return shared + [(arm, level) for level in sweep.levels for arm in others]


def _paper(sweep: SweepRuns, cell: Cell, metric: str) -> float | None:
    arm, level = cell
    return sweep.paper[level].get(arm, {}).get(metric)


def _configurations(sweep: SweepRuns) -> list[str]:
    """What a reader should know of data, settings, versions of the code and missing levels."""
    recipe = sweep.finished[0].recipe if sweep.finished else {}
    lines = notes.shots_note(recipe) + notes.selection_note(recipe)
    lines += notes.data_notes(sweep.finished)
    groups = {
        level: RunGroup(
            f"level {level}", tuple(run for arm in sweep.arms for run in sweep.of(arm, level))
        )
        for level in sweep.levels
    }
    for level, group in groups.items():
        if len(comparable(group.runs)) > 1:
            lines.append(f"The runs of level {level} do not have one configuration")
    lines += version_notes(sweep.name, sweep.finished, lambda run: f"{run.arm} at {level_of(run)}")
    missing = [level for level in sweep.paper if level not in sweep.levels]
    if missing:
        lines.append(f"Levels of this sweep that no run has finished: {', '.join(missing)}")
    inactive = [note for group in groups.values() for note in notes.inactive_encoder_notes(group)]
    return lines + _confounded(sweep) + inactive


def _confounded(sweep: SweepRuns) -> list[str]:
    """Settings that change with the level, such as the learning rate with the batch size."""
    first = {
        level: next(run for arm in reversed(sweep.arms) for run in sweep.of(arm, level))
        for level in sweep.levels
    }
    changing = differing(first)
    if len(changing) < 2:
        return []
    listed = "; ".join(
        f"{key} {', '.join(f'{value} at {level}' for level, value in values.items())}"
        for key, values in changing.items()
    )
    return [f"Settings that change from level to level: {listed}"]


def _seeds(sweep: SweepRuns, cells: list[Cell]) -> list[str]:
    """Cells that lack seeds: a difference is over shared seeds only."""
    seeds = {cell: tuple(run.seed for run in sweep.of(*cell)) for cell in cells}
    every = sorted({seed for own in seeds.values() for seed in own})
    return [
        f"{arm} at {level} has finished seeds {', '.join(map(str, own))} of "
        f"{', '.join(map(str, every))}"
        for (arm, level), own in seeds.items()
        if list(own) != every
    ]
