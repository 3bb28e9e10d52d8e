"""The best of several evaluations, against sorting them all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.engine.stage import is_better

MEASURED = st.integers(0, 3).map(float)
SCORES = st.one_of(st.just(math.nan), MEASURED)


@given(st.lists(st.tuples(SCORES, MEASURED), min_size=1), st.sampled_from(["last", "val", "test"]))
def test_the_first_of_the_highest_is_the_best(
    scores: list[tuple[float, float]], select_on: str
) -> None:
    best: dict[str, float] = {}
    for number, (headline, val) in enumerate(scores):
        metrics = {"all": headline, "val": val, "number": number}
        if is_better(metrics, best, select_on):
            best = metrics
    decisive = [pair[select_on == "val"] for pair in scores]
    measured = [-1.0 if math.isnan(score) else score for score in decisive]
    first = measured.index(max(measured))
    assert best["number"] == first


def test_validation_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no validation data; it measures all, few\. Set"):
        is_better({"all": 1.0, "few": 0.0}, {}, "val")


@pytest.mark.parametrize("best", [{}, {"all": 1.0, "val": 2.0}])
def test_a_score_of_validation_that_is_no_number_is_refused(best: dict[str, float]) -> None:
    """Else the first network, the least trained, would be kept."""
    metrics = {"all": 3.0, "val": math.nan}
    with pytest.raises(ValueError, match=r"validation score is NaN.*train\.select-on last"):
        is_better(metrics, best, "val")
    assert is_better(metrics, best, "last") and is_better(metrics, best, "test")
