from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.metrics.intervals import paired
from batchformer.lab.report.figures.per_class import MOST_POINTS, draw, gather, make
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.names import COLOURS
from batchformer.lab.report.results.runs import read_run
from helpers.run_folders import RunTree, change_arrays
from helpers.simulated_networks import known


@pytest.fixture
def pairs(tree: RunTree) -> dict[str, list[Path]]:
    return {
        arm: [tree.write(arm, seed) for seed in range(4)] for arm in ("baseline", "batchformer")
    }


def test_classes_go_from_frequent_to_rare_with_their_paired_interval(
    pairs: dict[str, list[Path]], tree: RunTree
) -> None:
    order = np.random.default_rng(0).permutation(10)
    for folder in pairs["baseline"] + pairs["batchformer"]:
        shuffled = {
            k: read_run(folder).figures[k][order] for k in ("per_class", "train_counts", "classes")
        }
        change_arrays(folder, **shuffled)
    data = known(gather(tree.group()))
    assert data.counts == sorted(data.counts, reverse=True)
    assert data.names == [f"class {i}" for i in range(10)]
    assert (data.classes, data.classes_per_point) == (10, 1)
    assert data.seeds == {"baseline": 4, "batchformer": 4}
    restored = np.argsort(order)
    values = {
        arm: np.array([read_run(folder).figures["per_class"][restored] for folder in folders])
        for arm, folders in pairs.items()
    }
    assert data.accuracy["batchformer"] == pytest.approx(values["batchformer"].mean(0))
    for i, found in enumerate(data.differences["batchformer"]):
        sides = (values[arm][:, i].tolist() for arm in ("baseline", "batchformer"))
        assert found == paired(*sides)


def test_a_class_without_test_images_is_a_gap(pairs: dict[str, list[Path]], tree: RunTree) -> None:
    for folder in pairs["baseline"] + pairs["batchformer"]:
        values = read_run(folder).figures["per_class"]
        values[4] = np.nan
        change_arrays(folder, per_class=values)
    data = known(gather(tree.group()))
    assert [i for i, d in enumerate(data.differences["batchformer"]) if d is None] == [4]
    assert np.isnan(data.accuracy["baseline"]).nonzero()[0].tolist() == [4]
    assert len(draw(data).axes) == 3
    (table,) = make(data).terminal_tables
    assert table.rows[4] == ("class 4", table.rows[4][1], "", "", "")


@pytest.mark.parametrize(
    ("classes", "per_point", "points"), [(100, 1, 100), (101, 2, 51), (250, 3, 84)]
)
def test_many_classes_are_averaged_over_neighbours(
    tree: RunTree, classes: int, per_point: int, points: int
) -> None:
    folders = [tree.write("baseline", seed, classes=classes) for seed in range(2)]
    data = known(gather(tree.group()))
    assert (data.classes_per_point, len(data.counts)) == (per_point, points)
    assert len(data.counts) <= MOST_POINTS
    first = np.mean([read_run(folder).figures["per_class"][:per_point] for folder in folders])
    assert data.accuracy["baseline"][0] == pytest.approx(first)
    assert data.places[0] == (per_point + 1) / 2
    assert data.places[-1] <= classes
    assert data.names == []


def test_two_seeds_have_differences_without_bars(tree: RunTree) -> None:
    tree.write_pairs(2)
    data = known(gather(tree.group()))
    assert all(d is not None and d.low is None for d in data.differences["batchformer"])
    assert not draw(data).axes[2].collections
    said = make(data).caption.text
    assert "without intervals, since an arm shares only 2 seeds" in said and "95%" not in said
    assert "difference to the baseline on" in said and "over 2 seeds" in said


def test_the_figure_has_counts_accuracies_and_a_panel_for_every_other_arm(
    pairs: dict[str, list[Path]], tree: RunTree
) -> None:
    tree.write_pairs(3, "batchformer_self")
    figure = draw(known(gather(tree.group())))
    counts, accuracy, *differences = figure.axes
    assert counts.get_yscale() == "log"
    assert [line.get_label() for line in accuracy.lines] == [
        "baseline",
        "batchformer",
        "batchformer_self",
    ]
    titles = [axes.get_title(loc="left") for axes in differences]
    assert [title.split()[0] for title in titles] == ["batchformer", "batchformer_self"]
    assert differences[0].get_ylim() == differences[1].get_ylim()
    lines: Any = differences[0].collections[0]
    bars = lines.get_segments()
    data = known(gather(tree.group()))
    first = data.differences["batchformer"][0]
    assert first is not None
    assert bars[0][:, 1].tolist() == pytest.approx([first.low, first.high])


def test_names_with_dollars_and_classes_without_images_are_drawn(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    counts = read_run(folder).figures["train_counts"]
    counts[-1] = 0
    change_arrays(folder, train_counts=counts, classes=np.array([f"${i}^" for i in range(10)]))
    figure = draw(known(gather(tree.group())))
    figure.canvas.draw()
    assert figure.axes[-1].get_xticklabels()[0].get_text() == "$0^"


def test_runs_without_accuracies_by_class_have_no_figure(tree: RunTree) -> None:
    change_arrays(tree.write("baseline", 0), per_class=None)
    assert gather(tree.group()) is None


def test_differences_and_hollow_markers_follow_the_reference(
    pairs: dict[str, list[Path]], tree: RunTree
) -> None:
    control = [tree.write("batchformer_self", seed) for seed in range(4)]
    data = known(gather(tree.group("batchformer_self")))
    assert list(data.accuracy) == ["batchformer_self", "baseline", "batchformer"]
    assert list(data.differences) == ["baseline", "batchformer"]
    assert "difference to batchformer_self on" in make(data).caption.text
    left = np.array([read_run(folder).figures["per_class"] for folder in control])
    right = np.array([read_run(folder).figures["per_class"] for folder in pairs["batchformer"]])
    found = [d.difference for d in data.differences["batchformer"] if d is not None]
    assert found == pytest.approx((right - left).mean(0))
    _, accuracy, *differences = draw(data).axes
    hollow = [line.get_label() for line in accuracy.lines if line.get_markerfacecolor() == "none"]
    assert hollow == ["batchformer_self"]
    assert [line.get_color() for line in accuracy.lines] == [COLOURS[arm] for arm in data.accuracy]
    assert [axes.get_title(loc="left") for axes in differences] == [
        "baseline − batchformer_self, percentage points",
        "batchformer − batchformer_self, percentage points",
    ]


def test_of_many_arms_only_the_reference_and_the_main_one_lie_upon_one_another(
    tree: RunTree,
) -> None:
    arms = ["baseline", "batchformer", "batchformer_self", "batchformer_frozen"]
    tree.write_pairs(1, *arms)
    tree.write("baseline_loss3x", 1)  # without a seed of the baseline, and so without a difference
    figure = draw(known(gather(tree.group())))
    lines = [line.get_label() for line in figure.axes[1].lines]
    assert lines == ["baseline", "batchformer", "baseline_loss3x"]
    titles = [axes.get_title(loc="left").split()[0] for axes in figure.axes[2:]]
    assert titles == arms[1:]
    shown = make(known(gather(tree.group())))
    drawn = "Accuracy is drawn of the baseline and batchformer and baseline_loss3x alone."
    assert drawn in shown.caption.text
    data = known(gather(one_group(run for run in tree.runs() if run.arm in arms[:3])))
    assert data.drawn == arms[:3], "few enough"


def test_classes_have_accuracy_and_difference(tree: RunTree) -> None:
    tree.write_pairs(1)
    shown = make(known(gather(tree.group())))
    (table,) = shown.terminal_tables
    columns = ("class", "images", "baseline", "batchformer", "batchformer - baseline")
    assert table.columns == columns
    first = table.rows[0]
    assert first[:2] == ("class 0", "500")
    assert float(first[4]) == pytest.approx(float(first[3]) - float(first[2]), abs=0.11)
