"""The figure of feature space: which points and seeds, how classes are marked, what is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from batchformer.insight.figures import features as feature_space
from batchformer.insight.figures.canvas import CLASS_COLOURS, CLASS_MARKERS, SHOT_MARKS
from batchformer.insight.figures.features import FeaturesOfArm, FeatureSpace, gather
from batchformer.insight.intervals import summary
from helpers.simulated_networks import all_many, group_of, known, simulated_group, simulated_insight

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


def gathered(kept: Mapping[tuple[str, int], Mapping[str, Any]]) -> FeatureSpace:
    return known(gather(group_of(kept)))


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
    assert "the first seed of each arm" in feature_space.caption(data).text
    for arm, first in (("baseline", 5), ("batchformer", 6)):
        np.testing.assert_array_equal(data.by_arm[arm].points, kept[arm, first]["projection"])


def test_measures_are_over_seeds_and_no_distance_is_negative() -> None:
    data = gathered({("baseline", s): features(s) for s in range(3)})
    for name in ("separation", "spread"):
        for i, found in enumerate(data.by_arm["baseline"].measures[name]):
            values = [features(s)[name][i] for s in range(3)]
            assert found == summary(values, within=(0.0, np.inf))


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


def test_groups_are_those_of_the_points_in_any_arm() -> None:
    def of(*labels: int) -> FeaturesOfArm:
        return FeaturesOfArm(np.zeros((len(labels), 2)), np.array(labels), (0.5, 0.5), {}, 1)

    data = FeatureSpace(SHOTS_OF, {"a": of(3, 3), "b": of(0, 1, 0)}, 0)
    assert data.groups == [0, 2], "no point is of the medium class"


def test_the_tables_have_the_mean_over_seeds_with_its_interval() -> None:
    kept = {("batchformer", seed): features(seed) for seed in range(3)}
    made = feature_space.make(gathered(kept))
    assert made.title == "Feature space" and not made.terminal_tables
    separation, spread = made.tables
    assert separation.columns == ("separation", "n", "many", "medium", "few")
    mean = np.mean([arrays["spread"][2] for arrays in kept.values()])
    assert spread.rows[0][:2] == ("batchformer", "3")
    assert spread.rows[0][-1].startswith(f"{mean:.2f} [")


def test_every_shot_group_has_its_colour_in_every_panel() -> None:
    data = known(gather(simulated_group("baseline", "batchformer")))
    figure = feature_space.draw(data)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["baseline", "batchformer"]
    for axes, found in zip(figure.axes, data.by_arm.values(), strict=True):
        first, second = (f"{100 * share:.0f}%" for share in found.share)
        assert axes.get_xlabel() == f"{first} and {second} of the variance"
    colours = [mark.colour for mark in SHOT_MARKS]
    for axes in figure.axes:
        samples: list[Any] = list(axes.collections[::2])
        means: list[Any] = list(axes.collections[1::2])
        assert [to_hex(c.get_facecolor()[0]) for c in samples] == colours
        assert sum(len(c.get_offsets()) for c in samples) == 600
        assert sum(len(c.get_offsets()) for c in means) == 12
        assert all(c.get_rasterized() for c in samples + means)


def test_an_empty_group_has_no_number() -> None:
    data = gathered({("baseline", 0): features(0, separation=np.array([1.0, np.nan, 2.0]))})
    assert feature_space.tables(data)[0].rows == [("baseline", "", "1.00", "", "2.00")]
    assert "medium" not in feature_space.caption(data).alternative.rpartition("baseline:")[2]
    assert len(feature_space.draw(data).axes) == 1


def test_few_classes_have_a_colour_a_mark_and_a_name_each() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    arms = ("baseline", "batchformer", "batchformer_frozen")
    data = known(gather(simulated_group(*arms, classes=7)))
    assert data.by_class and len(data.groups) == 3
    figure = feature_space.draw(data)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"class {i}" for i in range(7)]
    for axes, arm in zip(figure.axes, data.by_arm, strict=False):
        samples: list[Any] = list(axes.collections[::2])
        means: list[Any] = list(axes.collections[1::2])
        assert [to_hex(c.get_facecolor()[0]) for c in samples] == list(CLASS_COLOURS[:7])
        found = data.by_arm[arm]
        for i, (points, mean) in enumerate(zip(samples, means, strict=True)):
            own = found.points[found.labels == i]
            assert np.asarray(points.get_offsets()) == pytest.approx(own)
            assert np.asarray(mean.get_offsets()) == pytest.approx(own.mean(0)[None])
    # What is said below a panel stays clear of the name of the one below it.
    FigureCanvasAgg(figure).draw()
    said = figure.axes[0].xaxis.label.get_window_extent()
    (name,) = [
        text.get_window_extent()
        for text in figure.axes[2].findobj(Text)
        if isinstance(text, Text) and text.get_text() == "batchformer_frozen"
    ]
    assert said.y0 - name.y1 > said.height


def test_one_shot_group_is_all_classes() -> None:
    insight = all_many(simulated_insight("baseline", 0))
    data = gathered({("baseline", 0): insight})
    assert not data.by_class, "there are 12"
    assert not feature_space.draw(data).legends
    (separation,) = feature_space.tables(data)
    value = f"{insight['separation'][0]:.2f}"
    assert separation.columns == ("separation", "n", "all classes")
    assert separation.rows == [("baseline", "", value)]
    said = feature_space.caption(data)
    assert "Spread:" not in said.text, "it is 1 by definition"
    assert said.alternative.endswith(f"baseline: separation all classes {value}.")
