"""Which arrays of which networks a figure is given, and of how many images they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchformer.insight.figures.networks import (
    arrays_by_arm,
    class_names,
    image_count,
    mean_of_known,
    safe_divide,
)
from helpers.simulated_networks import group_of, simulated_insight


def test_networks_without_an_array_or_with_other_classes_are_left_out() -> None:
    kept: dict[tuple[str, int], Any] = {
        (arm, seed): simulated_insight(arm, seed)
        for arm in ("baseline", "batchformer")
        for seed in range(2)
    }
    kept["batchformer", 2] = simulated_insight("batchformer", 2, classes=13)
    kept["batchformer", 3] = {}
    group = group_of(kept)
    found = arrays_by_arm(group, "train_counts", "spread")
    assert {arm: list(runs) for arm, runs in found.items()} == {
        "baseline": [0, 1],
        "batchformer": [0, 1],
    }
    assert np.array_equal(found["batchformer"][1]["spread"], kept["batchformer", 1]["spread"])
    assert list(arrays_by_arm(group, "attention")) == ["batchformer"]
    assert arrays_by_arm(group, "spread", "no such array") == {}


def test_names_are_of_the_first_run_that_has_one_for_each_class() -> None:
    names = np.array(["a", "<b>", "c", "d"])
    kept = [{}, {"classes": names[:3]}, {"classes": names[:, None]}, {"classes": names}]
    group = group_of({("baseline", seed): one for seed, one in enumerate(kept)})
    assert class_names(group, "baseline", 4) == ("a", "<b>", "c", "d")
    assert class_names(group, "baseline", 5) == class_names(group, "batchformer", 4) == ()


def test_counts_are_broadcast_and_nothing_over_nothing_is_unknown() -> None:
    found = safe_divide(np.array([[2.0, 4.0], [0.0, 0.0]]), np.array([[2], [0]]))
    assert found[0].tolist() == [1.0, 2.0] and np.isnan(found[1]).all()
    mean = mean_of_known(np.array([[1.0, np.nan], [3.0, np.nan]]))
    assert mean[0] == 2.0 and np.isnan(mean[1])


@pytest.mark.parametrize(
    ("images", "looked_at", "words"),
    [
        (96, True, "96 of the 400 test samples"),
        (400, True, "400 test samples"),
        (96, False, "96 test samples"),
    ],
)
def test_a_part_is_told_from_the_whole_where_that_is_known(
    images: int, looked_at: bool, words: str
) -> None:
    key = "baseline", 0
    insight = {"reliability_count": np.ones((1, 5))} if looked_at else {}
    group = group_of({key: insight}, {key: {"correct": np.zeros(400, bool)}})
    assert image_count(group, images).words == words
