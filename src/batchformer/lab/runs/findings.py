"""What trainings found that is no score, as run folders keep it. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Kinds of records that every training has.
USUAL = ("train", "eval")
#: What a record has besides its values.
PLACE = ("kind", "epoch", "step")

Findings = dict[str, dict[str, Any]]


def findings_of(result: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Findings:
    """What a run found, by kind; of a run of several trainings by ``PART/KIND``.

    Args:
        result: of ``result.json``.
        records: of ``metrics.jsonl``, where earlier versions had it alone; the last of a kind
            counts.

    >>> findings_of({"findings": {"swad": {"updates": 3}}}, [])
    {'swad': {'updates': 3}}
    >>> findings_of({}, [{"kind": "swad", "epoch": 1, "step": 8, "updates": 3}])
    {'swad': {'updates': 3}}
    """
    found = result.get("findings")
    if isinstance(found, Mapping):
        return {kind: dict(each) for kind, each in found.items() if isinstance(each, Mapping)}
    return {
        str(record["kind"]): {key: each for key, each in record.items() if key not in PLACE}
        for record in records
        if record["kind"] not in USUAL
    }


def of_parts(parts: Mapping[str, Findings]) -> Findings:
    """What the trainings of one run found, by ``PART/KIND``: there is no mean of it.

    >>> of_parts({"photo": {"swad": {"updates": 3}}, "sketch": {}})
    {'photo/swad': {'updates': 3}}
    """
    return {
        f"{part}/{kind}": values for part, found in parts.items() for kind, values in found.items()
    }
