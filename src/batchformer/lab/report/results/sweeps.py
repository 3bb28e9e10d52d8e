"""The runs of a sweep, and level against level over seeds: numbers only."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from batchformer.insight.intervals import summary
from batchformer.lab.metrics.intervals import holm, paired
from batchformer.lab.report.results.acting import acting_notes
from batchformer.lab.report.results.comparison import (
    data_warnings,
    difference_of,
    left_out,
    measured,
    shots_warnings,
)
from batchformer.lab.report.results.configuration import RunGroup, comparable, differing
from batchformer.lab.report.results.names import (
    BASELINE,
    DESCRIPTIVE,
    bounds,
    decimals,
    main_metric,
    sorted_arms,
    sorted_metrics,
)
from batchformer.lab.report.results.notes import metric_notes, unmeasured
from batchformer.lab.report.results.provenance import version_notes
from batchformer.lab.report.results.results import Difference, Score
from batchformer.lab.report.results.runs import Run, headline

# The runs of a sweep, told from others by the ``sweep.json`` that lies above them.

NAME = "sweep.json"
Paper = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class SweepRuns:
    """Runs of one recipe with one setting at several levels.

    Args:
        name: of the sweep.
        factor: what is varied, in words.
        table: of the paper.
        reference: the level that the others are compared with.
        shared_baseline: the baseline does not depend on the level and lies with the reference.
        paper: of every level in order, the paper's numbers by arm and metric.
        runs: all that were found, finished or not.
    """

    name: str
    factor: str
    table: str
    reference: str
    shared_baseline: bool
    paper: Mapping[str, Paper]
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.state == "finished")

    @property
    def levels(self) -> list[str]:
        """Levels with a finished run, in the sweep's order."""
        found = {level_of(run) for run in self.finished}
        return [level for level in self.paper if level in found]

    @property
    def arms(self) -> list[str]:
        return sorted_arms(run.arm for run in self.finished)

    def of(self, arm: str, level: str) -> list[Run]:
        """Finished runs of one arm at one level by seed."""
        found = (run for run in self.finished if (run.arm, level_of(run)) == (arm, level))
        return sorted(found, key=lambda run: run.seed)

    def baseline_of(self, level: str) -> tuple[str, str]:
        """Arm and level of the baseline that a level is compared with."""
        return BASELINE, self.reference if self.shared_baseline else level


def level_of(run: Run) -> str:
    """The level, which is the name of a folder: ``SWEEP/LEVEL/ARM/seedN``."""
    return run.folder.resolve().parents[1].name


def split_sweeps(runs: Iterable[Run]) -> tuple[list[SweepRuns], list[Run]]:
    """Sweeps by name, and the runs that belong to none."""
    others: list[Run] = []
    members: dict[Path, list[Run]] = defaultdict(list)
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
            # Levels without their description can still be read as recipes.
            lack = "does not describe its levels" if path.is_file() else "is not there"
            remark = f"{path} {lack}; its levels are shown apart and not compared"
            others += [replace(found[0], remarks=(*found[0].remarks, remark)), *found[1:]]
    return sorted(sweeps, key=lambda sweep: sweep.name), others


def _read(path: Path, runs: Iterable[Run]) -> SweepRuns | None:
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


# Level against level and level against baseline, over the seeds both have: numbers only.

#: Shown in a sweep beside the one that is tested.
BESIDE = frozenset({"many", "medium", "few", "ece"}) | DESCRIPTIVE
Cell = tuple[str, str]
Values = Mapping[int, float]


@dataclass(frozen=True)
class SweepComparison:
    """A sweep's numbers; a cell is an arm and a level.

    Args:
        sweep: its runs.
        metric: the one that levels are compared by.
        metrics: that one, and those shown beside it without a test.
        scores: by cell and metric.
        to_reference: each level against the reference level of the same arm.
        to_baseline: each arm against the baseline, its level's own where there is one.
        warnings: what a reader should know before trusting a number.
        left_out: runs that are damaged or unfinished.
    """

    sweep: SweepRuns
    metric: str
    metrics: tuple[str, ...]
    scores: Mapping[tuple[Cell, str], Score]
    to_reference: Mapping[Cell, Difference]
    to_baseline: Mapping[Cell, Difference]
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def cells(self) -> list[Cell]:
        """What was measured: a shared baseline first, then level by level."""
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
    """Compare every level with the reference level and with the baseline, on the first metric.

    P-values are corrected over all comparisons of the sweep. Other metrics are summarised and not
    tested: each would make the correction stricter for all.
    """
    found = sorted_metrics(
        (name for run in sweep.finished for name in run.scores if measured(run, name) is not None),
        headline(sweep.finished),
    )
    metric = main_metric(found) or "all"
    metrics = (metric, *(name for name in found if name in BESIDE and name != metric))
    values = {
        (cell, name): {
            run.seed: value for run in sweep.of(*cell) if (value := measured(run, name)) is not None
        }
        for cell in _cells(sweep)
        for name in metrics
    }
    scores = {
        (cell, name): Score(
            summary([*by_seed.values()], bounds(name)),
            tuple(by_seed),
            _paper(sweep, cell, name),
            decimals(name),
        )
        for (cell, name), by_seed in values.items()
        if by_seed
    }
    cells = [cell for cell, name in scores if name == metric]

    def between(start: Cell, end: Cell) -> Difference | None:
        sides = values.get((start, metric), {}), values[end, metric]
        return _difference(
            sides, (_paper(sweep, start, metric), _paper(sweep, end, metric)), metric
        )

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
    adjusted = iter(holm([difference.paired.p_value for difference in both]))
    return SweepComparison(
        sweep,
        metric,
        metrics,
        scores,
        {cell: replace(d, adjusted=next(adjusted)) for cell, d in to_reference.items()},
        {cell: replace(d, adjusted=next(adjusted)) for cell, d in to_baseline.items()},
        (
            *_unmeasured(sweep, metrics),
            *_configurations(sweep),
            *_seeds(sweep, cells),
            *metric_notes(metrics),
        ),
        left_out(sweep.runs),
    )


def _cells(sweep: SweepRuns) -> list[Cell]:
    if not sweep.shared_baseline:
        return [(arm, level) for level in sweep.levels for arm in sweep.arms]
    others = [arm for arm in sweep.arms if arm != BASELINE]
    shared = [sweep.baseline_of(sweep.reference)]
    return shared + [(arm, level) for level in sweep.levels for arm in others]


def _difference(
    sides: tuple[Values, Values], printed: tuple[float | None, float | None], metric: str
) -> Difference | None:
    """The second side less the first over their shared seeds, here and as the paper prints it."""
    start, end = sides
    seeds = tuple(sorted(start.keys() & end.keys()))
    if not seeds:
        return None
    before, after = printed
    effect = None if before is None or after is None else after - before
    result = paired([start[seed] for seed in seeds], [end[seed] for seed in seeds])
    return difference_of(result, seeds, metric, effect)


def _paper(sweep: SweepRuns, cell: Cell, metric: str) -> float | None:
    arm, level = cell
    return sweep.paper[level].get(arm, {}).get(metric)


def _unmeasured(sweep: SweepRuns, metrics: tuple[str, ...]) -> list[str]:
    """What was not measured is said, since it flatters the mean."""
    runs = [run for cell in _cells(sweep) for run in sweep.of(*cell)]
    missing = {name: [run for run in runs if measured(run, name) is None] for name in metrics}
    return [
        unmeasured(name, found, len(runs), sweep.name, "level")
        for name, found in missing.items()
        if found
    ]


def _configurations(sweep: SweepRuns) -> list[str]:
    """Shots of another meaning, remarks on data, several configurations or versions of the code."""
    lines = shots_warnings(sweep.finished[0].recipe) if sweep.finished else []
    lines += data_warnings(sweep.finished)
    for level in sweep.levels:
        runs = [run for arm in sweep.arms for run in sweep.of(arm, level)]
        if len(comparable(runs)) > 1:
            lines.append(f"The runs of level {level} do not have one configuration")
    lines += version_notes(sweep.name, sweep.finished, lambda run: f"{run.arm} at {level_of(run)}")
    missing = [level for level in sweep.paper if level not in sweep.levels]
    if missing:
        lines.append(f"Levels of this sweep that no run has finished: {', '.join(missing)}")
    levels = (
        RunGroup(f"level {level}", tuple(run for arm in sweep.arms for run in sweep.of(arm, level)))
        for level in sweep.levels
    )
    return lines + _along(sweep) + [note for level in levels for note in acting_notes(level)]


def _along(sweep: SweepRuns) -> list[str]:
    """What else changes with the level, such as the learning rate with the batch size."""
    first = {
        level: runs[0]
        for level in sweep.levels
        for runs in [[run for arm in reversed(sweep.arms) for run in sweep.of(arm, level)]]
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
    """Cells with other seeds than most, since a difference is over the shared ones alone."""
    seeds = {cell: tuple(run.seed for run in sweep.of(*cell)) for cell in cells}
    every = sorted({seed for own in seeds.values() for seed in own})
    return [
        f"{arm} at {level} has finished seeds {', '.join(map(str, own))} of "
        f"{', '.join(map(str, every))}"
        for (arm, level), own in seeds.items()
        if list(own) != every
    ]
