"""Features of every arm side by side, and the numbers below them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchformer.lab.report.figures import features as feature_space
from batchformer.lab.report.figures.canvas import CLASS_COLOURS, SHOT_COLOURS
from batchformer.lab.report.figures.features import class_means, gather
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


@pytest.fixture
def root(write_run: Writer, add_insight: Writer, runs_root: Path) -> Path:
    for seed in (1, 2, 3):
        add_insight(write_run("baseline", seed))
    for seed in (2, 3, 4):
        add_insight(write_run("batchformer", seed))
    return runs_root


def test_points_are_of_the_first_common_seed_and_numbers_of_all(root: Path) -> None:
    data = gather(one_group(find_runs(root)))
    assert data is not None and data.seed == 2 and list(data.by_arm) == ["baseline", "batchformer"]
    with np.load(root / "tail/batchformer/seed2/insight.npz") as arrays:
        assert data.by_arm["batchformer"].points == pytest.approx(arrays["projection"])
    spread = []
    for seed in (2, 3, 4):
        with np.load(root / f"tail/batchformer/seed{seed}/insight.npz") as arrays:
            spread.append(float(arrays["spread"][2]))
    few = data.by_arm["batchformer"].measures["spread"][2]
    interval = stats.ttest_1samp(spread, 0).confidence_interval(0.95)
    assert few is not None
    assert (few.mean, few.low, few.high) == pytest.approx(
        (np.mean(spread), interval.low, interval.high)
    )
    separation, table = feature_space.numbers(data)
    assert separation.columns == ("separation", "n", "many", "medium", "few")
    assert table.rows[1][0] == "batchformer"
    assert table.rows[1][-1].startswith(f"{np.mean(spread):.2f} [")


def test_class_means_by_hand() -> None:
    points = np.array([[0.0, 1.0], [2.0, 3.0], [5.0, 5.0]])
    classes, means = class_means(points, np.array([7, 7, 2]))
    assert classes.tolist() == [2, 7]
    assert means.tolist() == [[5.0, 5.0], [1.0, 2.0]]


def test_every_shot_group_has_its_colour_in_every_panel(root: Path) -> None:
    data = gather(one_group(find_runs(root)))
    assert data is not None
    figure = feature_space.figure(data)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["baseline", "batchformer"]
    from matplotlib.colors import to_hex

    for axes in figure.axes:
        samples: list[Any] = list(axes.collections[::2])
        means: list[Any] = list(axes.collections[1::2])
        assert [to_hex(c.get_facecolor()[0]) for c in samples] == list(SHOT_COLOURS.values())
        assert sum(len(c.get_offsets()) for c in samples) == 600
        assert sum(len(c.get_offsets()) for c in means) == 12
        assert all(c.get_rasterized() for c in samples + means)


def test_arms_without_a_common_seed_are_said_to_be_so(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("baseline", 0))
    add_insight(write_run("batchformer", 1))
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.seed is None
    assert "the first seed of each arm" in feature_space.words(data).note


def test_an_empty_group_has_no_number(
    write_run: Writer, add_insight: Writer, make_insight: Writer, runs_root: Path
) -> None:
    insight = make_insight("baseline", 0)
    insight["separation"] = np.array([1.0, np.nan, 2.0])
    add_insight(write_run("baseline", 0), insight)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    assert feature_space.numbers(data)[0].rows == [("baseline", "1", "1.00", "", "2.00")]
    assert "medium" not in feature_space.words(data).alternative.rpartition("baseline:")[2]
    assert len(feature_space.figure(data).axes) == 1


def test_runs_without_features_have_no_figure(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    assert feature_space.shown(one_group(find_runs(runs_root))) is None


def test_few_classes_have_a_colour_a_mark_and_a_name_each(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_hex
    from matplotlib.text import Text

    for arm in ("baseline", "batchformer", "batchformer_frozen"):
        add_insight(write_run(arm, 0), classes=7)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.by_class and len(data.groups) == 3
    figure = feature_space.figure(data)
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


def test_one_shot_group_is_all_classes(
    write_run: Writer,
    add_insight: Writer,
    make_insight: Writer,
    in_one_group: Writer,
    runs_root: Path,
) -> None:
    insight = in_one_group(make_insight("baseline", 0))
    add_insight(write_run("baseline", 0), insight)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and not data.by_class, "there are 12"
    assert not feature_space.figure(data).legends
    (separation,) = feature_space.numbers(data)
    value = f"{insight['separation'][0]:.2f}"
    assert separation.columns == ("separation", "n", "all classes")
    assert separation.rows == [("baseline", "1", value)]
    said = feature_space.words(data)
    assert "Spread:" not in said.note, "it is 1 by definition"
    assert said.alternative.endswith(f"baseline: separation all classes {value}.")
