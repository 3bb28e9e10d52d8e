from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from batchformer.insight.intervals import summary
from batchformer.lab.metrics.intervals import outcome, paired
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.results import (
    LEVEL,
    Comparison,
    Difference,
    RecipeComparison,
    Score,
)


def difference(adjusted: float | None = None) -> Difference:
    result = paired([60.0, 61.0, 62.0], [61.0, 62.5, 62.9])
    return Difference(result, (0, 1, 2), outcome(result), adjusted, 1.0, 4)


def recipe(
    keys: Sequence[tuple[str, str]], *, metrics: Sequence[str] = ("all",), reference: str = "a"
) -> RecipeComparison:
    """A comparison that holds these differences and nothing else."""
    group = RunGroup("tail (train.updates 400)", (), (), reference)
    differences = {key: difference() for key in keys}
    return RecipeComparison(group, (), tuple(metrics), {}, differences, {}, ())


@pytest.mark.parametrize(
    ("adjusted", "stands"),
    [(None, False), (0.0, True), (0.0499, True), (LEVEL, False), (0.9, False)],
)
def test_a_difference_stands_below_the_level_and_only_if_tested(
    adjusted: float | None, stands: bool
) -> None:
    assert difference(adjusted).stands is stands


def test_others_come_once_in_the_order_of_the_differences() -> None:
    found = recipe([("z", "all"), ("b", "all"), ("z", "few"), ("b", "few")])
    assert found.others == ("z", "b")
    assert recipe([]).others == ()


@pytest.mark.parametrize(
    ("arms", "main"),
    [
        (["baseline", "batchformer_self", "batchformer"], "batchformer"),
        (["batchformer_frozen", "baseline_loss3x"], "batchformer_frozen"),
        ([], None),
    ],
)
def test_the_headline_is_about_batchformer_or_the_first_compared(
    arms: list[str], main: str | None
) -> None:
    assert recipe([(arm, "all") for arm in arms]).main_arm == main


def test_the_main_metric_is_the_first_shown() -> None:
    assert recipe([], metrics=("top1", "all")).main_metric == "top1"
    assert recipe([], metrics=()).main_metric == "all"


def test_name_and_reference_are_those_of_the_group() -> None:
    found = recipe([], reference="batchformer_self")
    assert (found.name, found.reference) == ("tail (train.updates 400)", "batchformer_self")


def test_results_cannot_be_changed() -> None:
    found = Comparison((recipe([]),), 0, 0, (), ())
    score = Score(summary([60.0, 61.0, 62.0]), (0, 1, 2), None)
    for result in (found, found.recipes[0], score, difference()):
        field = dataclasses.fields(result)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field, None)
