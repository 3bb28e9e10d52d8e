"""The runs of a sweep, told from others by the ``sweep.json`` that lies above them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from batchformer.lab.report.results.names import BASELINE, sorted_arms
from batchformer.lab.report.results.runs import Run

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
