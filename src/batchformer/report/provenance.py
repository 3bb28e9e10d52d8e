"""Where numbers come from: versions, hardware, commands and code, over several runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from batchformer.report.runs import Run

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


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Each fact with its distinct values over the runs; what no run recorded is left out."""
    keys = [*LABELS, *sorted({key for run in runs for key in run.provenance} - LABELS.keys())]
    facts: dict[str, list[str]] = {}
    for key in keys:
        found = [str(run.provenance[key]) for run in runs if run.provenance.get(key) is not None]
        values = list(dict.fromkeys(found))
        if key == "started" and len(values) > 1:
            values = [f"{min(values)} to {max(values)}"]
        if values:
            facts[LABELS.get(key, key)] = values
    minutes = [run.result["minutes"] for run in runs if run.result and run.result.get("minutes")]
    if minutes:
        facts["Minutes a run"] = [_range(minutes)]
    return facts


def version_notes(name: str, runs: Iterable[Run], part: Callable[[Run], str]) -> list[str]:
    """Which parts of a comparison were run with which code, where there are several versions.

    A part that several share is named with its seeds.
    """
    seeds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run in runs:
        seeds[str(run.provenance.get("code_sha256"))[:12], part(run)].append(run.seed)
    codes = sorted({code for code, _ in seeds})
    if len(codes) < 2:
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
    return [f"{name} was run with {len(codes)} versions of the code: {'; '.join(listed)}"]


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"
