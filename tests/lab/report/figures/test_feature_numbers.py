"""What is gathered of features: which points, which seeds, and how classes are marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from batchformer.lab.report.figures.canvas import CLASS_COLOURS, CLASS_MARKERS, SHOT_MARKS
from batchformer.lab.report.figures.features import FeatureSpace, OfArm, class_means, gather
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.runs import Run

SHOTS_OF = np.array([0, 0, 1, 2])


def features(seed: int, shots: Any = SHOTS_OF, **changes: Any) -> dict[str, Any]:
    """Arrays of one run with twice as many samples as classes; a change of None leaves one out."""
    generator = np.random.default_rng(seed)
    arrays = {
        "shot_of_class": np.asarray(shots),
        "projection": generator.normal(size=(2 * len(shots), 2)).astype(np.float32),
        "projection_labels": np.arange(2 * len(shots)) % len(shots),
        "projection_share": np.array([0.5, 0.25]) / (1 + seed),
        "separation": generator.uniform(1, 2, 3),
        "spread": generator.uniform(0, 1, 3),
    } | changes
    return {name: array for name, array in arrays.items() if array is not None}


def group_of(kept: Mapping[tuple[str, int], Mapping[str, Any]]) -> RunGroup:
    """Runs in memory, by arm and seed, that kept these arrays."""
    runs = [Run(Path(arm, f"seed{seed}"), {}, arm, seed, {}, (), None) for arm, seed in kept]
    for run, arrays in zip(runs, kept.values(), strict=True):
        run.__dict__["insight"] = arrays  # where the cached property keeps what it read
    return RunGroup("tail", tuple(runs))


def gathered(kept: Mapping[tuple[str, int], Mapping[str, Any]]) -> FeatureSpace:
    data = gather(group_of(kept))
    assert data is not None
    return data


def test_points_are_of_the_first_seed_that_all_arms_have() -> None:
    kept = {("baseline", s): features(s) for s in (1, 3, 4)}
    kept |= {("batchformer", s): features(10 + s) for s in (2, 3, 4)}
    data = gathered(kept)
    assert data.seed == 3 and list(data.by_arm) == ["baseline", "batchformer"]
    for arm, found in data.by_arm.items():
        arrays = kept[arm, 3]
        assert found.points.dtype == np.float64
        np.testing.assert_array_equal(found.points, arrays["projection"])
        np.testing.assert_array_equal(found.labels, arrays["projection_labels"])
        assert found.share == tuple(arrays["projection_share"])
        assert found.seeds == 3


def test_without_a_common_seed_each_arm_shows_its_own_first() -> None:
    kept = {("baseline", s): features(s) for s in (5, 7)}
    kept |= {("batchformer", s): features(10 + s) for s in (6, 8)}
    data = gathered(kept)
    assert data.seed is None
    for arm, first in (("baseline", 5), ("batchformer", 6)):
        np.testing.assert_array_equal(data.by_arm[arm].points, kept[arm, first]["projection"])


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_measures_are_means_over_seeds_with_students_interval(seeds: int) -> None:
    data = gathered({("baseline", s): features(s) for s in range(seeds)})
    for name in ("separation", "spread"):
        for i, found in enumerate(data.by_arm["baseline"].measures[name]):
            values = [features(s)[name][i] for s in range(seeds)]
            assert found is not None and found.mean == pytest.approx(np.mean(values))
            if seeds < 3:
                assert found.low is None and found.high is None
            else:
                interval = stats.t.interval(0.95, seeds - 1, np.mean(values), stats.sem(values))
                # A distance is not negative.
                assert (found.low, found.high) == pytest.approx((max(interval[0], 0), interval[1]))


def test_a_measure_that_is_unknown_in_a_seed_is_left_out_and_none_where_in_all() -> None:
    values = [[1.0, np.nan, np.nan], [2.0, np.nan, 7.0], [6.0, np.nan, np.inf]]
    data = gathered(
        {("baseline", s): features(s, spread=np.array(v)) for s, v in enumerate(values)}
    )
    many, medium, few = data.by_arm["baseline"].measures["spread"]
    assert many is not None and many.values == (1.0, 2.0, 6.0)
    assert medium is None
    assert few is not None and few.values == (7.0,)
    assert data.by_arm["baseline"].seeds == 3


def test_runs_that_lack_an_array_are_left_out_and_so_are_arms_without_a_run() -> None:
    kept = {
        ("baseline", 0): features(0, projection=None),
        ("baseline", 1): features(1),
        ("batchformer", 0): features(2, spread=None),
    }
    data = gathered(kept)
    assert list(data.by_arm) == ["baseline"] and data.seed == 1
    assert data.by_arm["baseline"].seeds == 1
    del kept["baseline", 1]
    assert gather(group_of(kept)) is None


def names(classes: int) -> Any:
    return np.array([f"<b>{i}</b> & $x_{i}$" for i in range(classes)])


@pytest.mark.parametrize(("classes", "each"), [(1, True), (10, True), (11, False)])
def test_so_few_classes_that_each_has_a_mark(classes: int, each: bool) -> None:
    shots = np.arange(classes) % 3
    data = gathered({("baseline", 0): features(0, shots, classes=names(classes))})
    assert data.names == tuple(names(classes)) and data.by_class == each
    labels = np.arange(classes)[::-1]
    assert data.groups == sorted(set(shots.tolist()))
    if each:
        looks = [(mark.name, mark.colour, mark.shape) for mark in data.marks]
        assert looks == list(zip(data.names, CLASS_COLOURS, CLASS_MARKERS, strict=False))
        np.testing.assert_array_equal(data.mark_of(labels), labels)
    else:
        assert data.marks == SHOT_MARKS
        np.testing.assert_array_equal(data.mark_of(labels), labels % 3)


@pytest.mark.parametrize("kept", [None, names(3), names(4)[:, None]])
def test_names_that_are_not_those_of_the_classes_are_unknown(kept: Any) -> None:
    data = gathered({("baseline", 0): features(0, classes=kept)})
    assert data.names == () and not data.by_class


def test_names_are_taken_from_the_first_run_that_has_them() -> None:
    kept: dict[tuple[str, int], Any] = {
        ("baseline", 0): {},
        ("baseline", 1): features(1),
        ("baseline", 2): features(2, classes=names(4)),
    }
    assert gathered(kept).names == tuple(names(4))


def test_groups_are_those_of_the_points_in_any_arm() -> None:
    def of(*labels: int) -> OfArm:
        return OfArm(np.zeros((len(labels), 2)), np.array(labels), (0.5, 0.5), {}, 1)

    data = FeatureSpace(SHOTS_OF, {"a": of(3, 3), "b": of(0, 1, 0)}, 0)
    assert data.groups == [0, 2], "no point is of the medium class"


points = st.tuples(st.floats(-100, 100), st.floats(-100, 100))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), points), min_size=1, max_size=40))
def test_class_means_are_those_of_each_class_alone(samples: list[Any]) -> None:
    by_class: dict[int, list[Any]] = {}
    for label, point in samples:
        by_class.setdefault(label, []).append(point)
    labels, where = (np.array(side) for side in zip(*samples, strict=True))
    classes, means = class_means(where, labels)
    assert classes.tolist() == sorted(by_class)
    for label, mean in zip(classes.tolist(), means, strict=True):
        assert mean == pytest.approx(np.mean(by_class[label], 0), abs=1e-9)


def test_no_points_have_no_means() -> None:
    classes, means = class_means(np.zeros((0, 2)), np.zeros(0, dtype=int))
    assert classes.shape == (0,) and means.shape == (0, 2)
