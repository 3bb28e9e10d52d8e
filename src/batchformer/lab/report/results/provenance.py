"""Summarise where the numbers of several runs come from: versions, hardware, commands, code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from batchformer.insight.figures.text import value_range
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.runs.provenance import WHERE, contributing

LABELS = {
    "batchformer": "batchformer",
    "torch": "torch",
    "python": "Python",
    "hardware": "Hardware",
    "device": "Device",
    "git": "Commit",
    "code_sha256": "Code hash (SHA-256)",
    "started": "Started",
    "command": "Command",
}


def provenance(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """The distinct values of each recorded fact, and which runs were resumed where."""
    sittings = [sitting for run in runs for sitting in contributing(run.sittings)]
    others = {key for one in sittings for key in one} - LABELS.keys() - set(WHERE)
    facts: dict[str, list[str]] = {}
    for key in [*LABELS, *sorted(others)]:
        found = [str(one[key]) for one in sittings if one.get(key) is not None]
        values = list(dict.fromkeys(found))
        if key == "started" and len(values) > 1:
            values = [f"{min(values)} to {max(values)}"]
        if values:
            facts[LABELS.get(key, key)] = values
    resumed = [
        f"{run.arm} seed {run.seed} at {_place(sitting)}"
        for run in runs
        for sitting in contributing(run.sittings)[1:]
        if sitting["from_update"]
    ]
    if resumed:
        facts["Resumed"] = resumed
    minutes = [run.result["minutes"] for run in runs if run.result and run.result.get("minutes")]
    if minutes:
        facts["Minutes a run"] = [value_range(minutes, _minutes)]
    return facts


def _minutes(count: float) -> str:
    return f"{count:.2g}" if count < 99.5 else f"{count:,.0f}"


def version_notes(
    name: str, runs: Iterable[RecordedRun], part: Callable[[RecordedRun], str]
) -> list[str]:
    """Which parts of a comparison were run with which code, if there are several versions.

    A ``part``, such as an arm, that was run with several versions is named with its seeds. A run
    that was resumed with another version is named with both.
    """
    seeds: dict[tuple[str, str], list[int]] = defaultdict(list)
    versions: set[str] = set()
    for run in runs:
        versions |= {_code(one) for one in contributing(run.sittings)}
        seeds[_codes(run), part(run)].append(run.seed)
    codes = sorted({code for code, _ in seeds})
    if len(versions) < 2:
        return []
    shared = {own for _, own in seeds if sum(own == other for _, other in seeds) > 1}
    listed = []
    for code in codes:
        parts = {own: found for (used, own), found in seeds.items() if used == code}
        named = (
            f"{own} seed{'s' * (len(found) > 1)} {' '.join(map(str, sorted(found)))}"
            if own in shared
            else own
            for own, found in parts.items()
        )
        listed.append(f"{code} ({', '.join(named)})")
    return [f"{name} was run with {len(versions)} versions of the code: {'; '.join(listed)}"]


def _codes(run: RecordedRun) -> str:
    """The code of a run; if it was resumed with other code, each version and where it began."""
    sittings = contributing(run.sittings)
    words = _code(sittings[0]) if sittings else str(None)
    for before, after in pairwise(sittings):
        if _code(before) != _code(after):
            words += f", then {_code(after)} from {_place(after)}"
    return words


def _code(sitting: Mapping[str, Any]) -> str:
    return str(sitting.get("code_sha256"))[:12]


def _place(sitting: Mapping[str, Any]) -> str:
    """Where a sitting began.

    >>> _place({"from_update": 40}), _place({"from_update": 40, "part": "sketch"})
    ('update 40', 'update 40 of sketch')
    """
    part = sitting.get("part")
    return f"update {sitting['from_update']}" + (f" of {part}" if part else "")
