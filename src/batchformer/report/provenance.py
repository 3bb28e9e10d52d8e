"""Where numbers come from: versions, hardware, commands and code, over several runs."""

from __future__ import annotations

from collections.abc import Sequence

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


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"
