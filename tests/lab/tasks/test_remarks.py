"""What is said of the data before anything is trained."""

from __future__ import annotations

from typing import Any

from batchformer.lab.tasks.load import remarks_in


def test_facts_without_remarks_give_no_lines() -> None:
    assert remarks_in({"train": 5, "domains": {"photo": 3}}) == []
    nothing: dict[str, Any] = {
        "remarks": [],
        "words_without_vector": {},
        "random_vectors": [],
        "skipped": {},
    }
    assert remarks_in(nothing) == []


def test_each_remark_and_each_list_is_a_line() -> None:
    drawn = [f"word{number}" for number in range(12)]
    lines = remarks_in(
        {
            "remarks": ["one", "two"],
            "words_without_vector": {"FauxFur": ["Faux"], "mid-calf": ["mid", "calf"]},
            "random_vectors": drawn,
        }
    )
    assert lines[:2] == ["one", "two"] and len(lines) == 4
    assert lines[2].endswith("mean: FauxFur (Faux), mid-calf (mid, calf)")
    assert lines[3].endswith("drawn: " + ", ".join(drawn[:10]) + " and 2 more")
