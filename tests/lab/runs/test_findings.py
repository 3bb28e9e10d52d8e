"""What trainings found: read from a result, from records of earlier versions, and by part."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.runs.folder import findings_of, of_parts

RECORDS: list[dict[str, Any]] = [
    {"kind": "train", "epoch": 0, "step": 4, "loss": 1.0},
    {"kind": "eval", "epoch": 0, "step": 4, "all": 50.0},
    {"kind": "swad", "epoch": 1, "step": 8, "updates": 3, "converged": False},
    {"kind": "swad", "epoch": 2, "step": 12, "updates": 5, "converged": True},
]


def test_records_have_it_where_a_result_has_not() -> None:
    found = {"swad": {"updates": 5, "converged": True}}
    assert findings_of({"metrics": {}}, RECORDS) == found
    assert findings_of({}, RECORDS[:2]) == {}


def test_a_result_goes_before_records() -> None:
    result = {"findings": {"r0/swad": {"updates": 7}, "r45/swad": {"updates": 9}}}
    assert findings_of(result, RECORDS) == result["findings"]
    assert findings_of({"findings": {}}, RECORDS) == {}


@pytest.mark.parametrize("damaged", [None, 3, [1], "swad", {"swad": 3}, {"swad": [1]}])
def test_what_is_no_finding_is_left_out(damaged: Any) -> None:
    assert findings_of({"findings": damaged}, []) == {}


def test_parts_keep_theirs_apart() -> None:
    one, two = findings_of({}, RECORDS[:3]), findings_of({}, RECORDS)
    found = of_parts({"r0": one, "r45": {}, "r75": two})
    assert {name: values["updates"] for name, values in found.items()} == {
        "r0/swad": 3,
        "r75/swad": 5,
    }
