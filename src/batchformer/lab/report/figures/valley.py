"""Which updates SWAD averaged, as a table over the seeds of every arm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batchformer.lab.engine.log import read_records
from batchformer.lab.report.figures.shown import Numbers
from batchformer.lab.report.results.configuration import Group
from batchformer.lab.report.results.runs import Run
from batchformer.lab.runs.folder import findings_of, of_parts

KIND = "swad"
COLUMNS = {
    "first_update": "first update",
    "last_update": "last update",
    "first_evaluation": "first evaluation",
    "last_evaluation": "last evaluation",
}
NOTE = (
    " SWAD averages the weights after the updates in the table, up to the evaluations whose loss "
    "lies in the valley; where seeds differ, from the lowest to the highest."
)


def valleys(run: Run) -> dict[str, Mapping[str, Any]]:
    """Where SWAD's valley was, for every training of a run.

    Returns:
        The values of its record by the part of the run, which is empty where it is one training;
        nothing for a run without SWAD.
    """
    found = findings_of(run.result or {}, run.metrics)
    if not found:  # in runs of several trainings by earlier versions, the parts alone have it
        files = (path for path in sorted(run.folder.glob("*/metrics.jsonl")) if path.is_file())
        found = of_parts({path.parent.name: findings_of({}, read_records(path)) for path in files})
    by_part = {name.rpartition("/"): values for name, values in found.items()}
    return {part: values for (part, _, kind), values in by_part.items() if kind == KIND}


def valley_table(group: Group) -> Numbers | None:
    """One row for every arm and part; None where no run has a valley."""
    rows = []
    for arm in group.arms:
        by_part: dict[str, list[Mapping[str, Any]]] = {}
        for run in group.of(arm):
            for part, values in valleys(run).items():
                by_part.setdefault(part, []).append(values)
        for part, seen in by_part.items():
            spans = [_span(values.get(key) for values in seen) for key in COLUMNS]
            converged = sum(bool(values.get("converged")) for values in seen)
            rows.append((arm, str(len(seen)), part, *spans, f"{converged} of {len(seen)}"))
    columns = ("arm", "n", "target", *COLUMNS.values(), "converged")
    return Numbers("What SWAD averaged", columns, rows) if rows else None


def _span(values: Iterable[Any]) -> str:
    """One number, or the lowest to the highest; empty where none is known."""
    known = [value for value in values if isinstance(value, (int, float))]
    if not known:
        return ""
    low, high = f"{min(known):,.0f}", f"{max(known):,.0f}"
    return low if low == high else f"{low} to {high}"
