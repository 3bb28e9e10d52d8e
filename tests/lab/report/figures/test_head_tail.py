"""Predictions between shot groups: against counting image by image, and paired intervals."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.metrics.intervals import paired
from batchformer.lab.report.figures import head_tail, per_class
from batchformer.lab.report.figures.head_tail import between_groups, gather, shot_of_class
from helpers.run_folders import RunTree, change_arrays, recipe_of, write_insight
from helpers.simulated_networks import known, simulated_insight


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_rates_are_those_of_the_images(pairs: list[tuple[int, int]], shots: list[int]) -> None:
    confusion = np.zeros((5, 5))
    for target, predicted in pairs:
        confusion[target, predicted] += 1
    rates, right = between_groups(confusion, np.array(shots))
    for group in range(3):
        own = [(t, p) for t, p in pairs if shots[t] == group]
        if not own:
            assert np.isnan(rates[group]).all() and np.isnan(right[group])
            continue
        for other in range(3):
            share = 100 * np.mean([shots[p] == other for _, p in own])
            assert rates[group, other] == pytest.approx(share)
        assert right[group] == pytest.approx(100 * np.mean([t == p for t, p in own]))


def test_differences_are_paired_over_seeds(tree: RunTree) -> None:
    folders = {
        arm: [tree.write(arm, seed, classes=12) for seed in range(4)]
        for arm in ("baseline", "batchformer")
    }
    data = known(gather(tree.group()))
    assert data.groups == ["many", "medium", "few"]

    def few_as_many(folder: Path) -> float:
        with np.load(folder / "figures.npz") as arrays:
            counts, confusion = arrays["train_counts"], arrays["confusion"]
        rows = confusion[counts < 20]
        return float(100 * rows[:, counts > 100].sum() / rows.sum())

    left, right = ([few_as_many(f) for f in folders[arm]] for arm in ("baseline", "batchformer"))
    assert data.by_arm["baseline"].rates[2, 0] == pytest.approx(np.mean(left))
    differences = data.by_arm["batchformer"].differences
    assert differences is not None and data.by_arm["baseline"].differences is None
    assert differences[2][0] == paired(left, right)
    assert np.sum([d.difference for d in differences[2]]) == pytest.approx(0, abs=1e-9)
    said = head_tail.caption(data).text
    assert "Pale red is more, pale blue fewer than the baseline, uncorrected." in said
    assert "on the same seeds, ± half the width of its 95% t interval. A cell whose" in said
    assert f"baseline {np.mean(left):.1f}%; batchformer {np.mean(right):.1f}%" in said


def test_the_figure_has_the_rates_and_the_differences(tree: RunTree) -> None:
    tree.write_pairs(3, classes=12)
    data = known(gather(tree.group()))
    figure = head_tail.draw(data)
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in visible] == [
        "baseline, %",
        "batchformer, %",
        "− baseline, pct. points",
    ]
    texts = [text.get_text() for text in visible[0].texts]
    found = data.by_arm["baseline"]
    assert texts[0] == f"{found.rates[0, 0]:.1f}\n({found.right[0]:.1f})"
    assert texts[1] == f"{found.rates[0, 1]:.1f}"
    differences = [text.get_text() for text in visible[2].texts]
    assert len(differences) == 9 and all("±" in text for text in differences)
    assert len(head_tail.tables(data)) == 3


@pytest.mark.parametrize("figure", [head_tail, per_class])
def test_titles_of_long_names_stay_in_the_figure_and_apart(tree: RunTree, figure: Any) -> None:
    arms = ("baseline", "batchformer_official_loss", "batchformer_official_grouping")
    tree.write_pairs(1, *arms)
    for reference in arms:
        drawn = figure.draw(known(figure.gather(tree.group(reference))))
        drawn.draw_without_rendering()
        above = [axes._left_title for axes in drawn.axes if axes.get_visible()]
        boxes = [text.get_window_extent() for text in above]
        assert max(box.x1 for box in boxes) <= drawn.bbox.x1
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_two_seeds_have_no_interval(tree: RunTree) -> None:
    tree.write_pairs(2)
    data = known(gather(tree.group()))
    assert "±" not in head_tail.caption(data).text
    assert "without intervals, and so without colour" in head_tail.caption(data).text
    texts = [t.get_text() for axes in head_tail.draw(data).axes for t in axes.texts]
    assert not any("±" in text for text in texts)


def test_groups_are_those_of_the_runs_scores(tree: RunTree) -> None:
    counts = np.array([9, 8, 7, 3, 2, 1])
    tree.write("baseline", 0, recipe=recipe_of("third", data__shots="thirds"))
    tree.write("baseline", 0, recipe=recipe_of("count"))
    kept = simulated_insight("baseline", 0, classes=6)
    kept["shot_of_class"] = np.array([2, 2, 1, 1, 0, 0])
    write_insight(tree.write("baseline", 0, recipe=recipe_of("seen")), kept)
    count, seen, third = tree.runs()
    assert shot_of_class(third, counts).tolist() == [0, 0, 1, 1, 2, 2]
    assert shot_of_class(count, counts).tolist() == [2] * 6
    assert shot_of_class(seen, counts).tolist() == [2, 2, 1, 1, 0, 0]


def test_classes_of_one_group_have_no_figure(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    change_arrays(folder, train_counts=np.full(10, 500))
    assert gather(tree.group()) is None
    change_arrays(tree.write("baseline", 0), confusion=None)
    assert gather(tree.group()) is None


def test_only_differences_apart_from_0_have_a_colour(tree: RunTree) -> None:
    arms = ("baseline", "batchformer", "batchformer_self", "batchformer_frozen")
    tree.write_pairs(4, *arms, classes=12, gain=0.02)
    data = known(gather(tree.group()))
    figure = head_tail.draw(data)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("−")]
    apart = []
    for axes, arm in zip(
        [a for a in panels if a.get_visible()], list(data.by_arm)[1:], strict=True
    ):
        coloured = np.asarray(axes.collections[0].get_array()).reshape(3, 3)
        low, high = axes.collections[0].get_clim()
        assert low == -high <= -head_tail.LEAST_REACH
        assert np.abs(coloured).max() <= high / 2, "uncorrected cells are pale"
        for i, row in enumerate(data.by_arm[arm].differences or []):
            for j, found in enumerate(row):
                assert found.low is not None and found.high is not None
                apart.append(found.low > 0 or found.high < 0)
                assert coloured[i, j] == (found.difference if apart[-1] else 0)
    assert 0 < sum(apart) < len(apart) == 27
    assert "by chance about 1 of 27 would have a colour" in head_tail.caption(data).text
