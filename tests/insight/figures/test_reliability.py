"""The reliability diagram: calibration from sums in bins, words, tables and what is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.insight.figures import reliability
from batchformer.insight.figures.reliability import FEWEST, NAMES, gather
from batchformer.insight.intervals import summary
from helpers.simulated_networks import group_of, known, simulated_group

BINS = 5
#: Confidence, whether it was right, and the shot group of the class: 1, 2 or 3.
Prediction = tuple[float, bool, int]
HOSTILE = "<b>arm</b> & $x_y$"


def bin_of(confidence: float) -> int:
    return min(int(confidence * BINS), BINS - 1)


def sums(predictions: list[Prediction]) -> dict[str, Any]:
    """The arrays that a run keeps of its predictions."""
    made = np.zeros((3, 4, BINS))
    for confidence, right, shots in predictions:
        for group in (0, shots):
            made[:, group, bin_of(confidence)] += (1, confidence, right)
    return dict(zip(NAMES, made, strict=True))


def error_of(predictions: list[Prediction]) -> float:
    """Expected calibration error in percent, by its definition over predictions."""
    total = 0.0
    for b in range(BINS):
        own = [(c, r) for c, r, _ in predictions if bin_of(c) == b]
        if own:
            gap = np.mean([r for _, r in own]) - np.mean([c for c, _ in own])
            total += len(own) / len(predictions) * abs(gap)
    return 100 * total


def gathered(kept: Mapping[tuple[str, int], Mapping[str, Any]], by_shots: bool = False) -> Any:
    return known(gather(group_of(kept), by_shots))


def drawn(seed: int, groups: tuple[int, ...] = (1, 2, 3), count: int = 200) -> list[Prediction]:
    generator = np.random.default_rng(seed)
    sure = generator.uniform(0.2, 1, count)
    right = generator.random(count) < sure**2
    shots = generator.choice(groups, count)
    return [(float(c), bool(r), int(s)) for c, r, s in zip(sure, right, shots, strict=True)]


predictions = st.lists(
    st.tuples(st.floats(0, 1), st.booleans(), st.sampled_from([1, 2, 3])), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(st.lists(predictions, min_size=1, max_size=4))
def test_bins_pool_all_seeds_and_errors_are_of_each(seeds: list[list[Prediction]]) -> None:
    found = gathered({("baseline", s): sums(own) for s, own in enumerate(seeds)}).by_arm["baseline"]
    assert found.seeds == len(seeds)
    for group in range(4):
        each = [[p for p in own if group in (0, p[2])] for own in seeds]
        for b in range(BINS):
            pooled = [(c, r) for own in each for c, r, _ in own if bin_of(c) == b]
            assert found.count[group, b] == len(pooled)
            sure, right = np.mean(pooled, 0) if pooled else (np.nan, np.nan)
            assert found.confidence[group, b] == pytest.approx(100 * sure, nan_ok=True)
            assert found.accuracy[group, b] == pytest.approx(100 * right, nan_ok=True)
        errors = [error_of(own) for own in each if own]
        summary = found.ece[group]
        if not errors:
            assert summary is None
        else:
            assert summary is not None and summary.values == pytest.approx(errors, abs=1e-9)


def test_the_interval_is_over_seeds() -> None:
    data = gathered({("baseline", s): sums(drawn(s)) for s in range(4)})
    found = summary([error_of(drawn(s)) for s in range(4)])
    (table,) = reliability.tables(data)
    assert table.columns == ("arm", "n", "all", "many", "medium", "few")
    text = f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"
    assert table.rows[0][:3] == ("baseline", "4", text)


@pytest.mark.parametrize(
    ("groups", "shots", "panels"),
    [((1, 2, 3), [1, 2, 3], [1, 2, 3]), ((1, 3), [1, 3], [1, 3]), ((2,), [], [0])],
)
def test_one_shot_group_is_all_and_has_no_panel_of_its_own(
    groups: tuple[int, ...], shots: list[int], panels: list[int]
) -> None:
    kept = {("baseline", 0): sums(drawn(0, groups))}
    whole, split = gathered(kept), gathered(kept, by_shots=True)
    assert whole.shots == split.shots == shots
    assert (whole.groups, split.groups) == ([0], panels)
    (table,) = reliability.tables(whole)
    assert table.columns == ("arm", "n", "all", *(("many", "medium", "few") if shots else ()))
    assert [i for i, cell in enumerate(table.rows[0][3:], 1) if cell] == shots
    drawn_panels = reliability.draw(split).axes
    assert len(drawn_panels) == 2 * len(panels)
    assert (drawn_panels[0].get_title(loc="left") == "Accuracy, %") == (not shots)


def test_a_group_of_one_arm_alone_has_its_panel() -> None:
    kept = {("baseline", 0): sums(drawn(0, (1,))), ("batchformer", 0): sums(drawn(1, (3,)))}
    assert gathered(kept, by_shots=True).groups == [1, 3]


def test_the_words_name_bins_seeds_and_errors() -> None:
    kept = {("baseline", s): sums(drawn(s)) for s in range(2)}
    kept["batchformer", 0] = sums(drawn(7))
    data = gathered(kept)
    said = reliability.caption(data)
    mean = np.mean([error_of(drawn(s)) for s in range(2)])
    errors = f"baseline {mean:.1f}%, batchformer {error_of(drawn(7)):.1f}%."
    assert said.text.endswith(f"Expected calibration error from the same bins: {errors}")
    assert f"{BINS} bins of confidence on 200 test samples, seeds (baseline 2, b" in said.text
    assert "below it, it is too sure, above it not sure enough" in said.text
    assert f"fewer than {FEWEST} predictions" in said.text
    assert said.alternative == f"Line plot. {said.text}"


def test_the_table_of_bins_leaves_out_the_empty_ones() -> None:
    sure = [(0.95, True, 1)] * 1234 + [(0.5, False, 1), (0.5, True, 2)]
    table = reliability.bins_table(gathered({("baseline", 0): sums(sure)}))
    assert table.columns == ("arm", "predictions", "confidence", "accuracy")
    assert list(table.rows) == [
        ("baseline", "2", "50.00", "50.00"),
        ("baseline", "1,234", "95.00", "100.00"),
    ]


def test_runs_without_a_prediction_have_no_number_and_no_error_is_spoken_of() -> None:
    data = gathered({("baseline", 0): sums([])}, by_shots=True)
    assert data.groups == [0] and data.by_arm["baseline"].ece == [None] * 4
    assert "calibration error" not in reliability.caption(data).text
    assert [table.rows for table in reliability.tables(data)] == [[("baseline", "", "")]]
    assert reliability.bins_table(data).rows == []
    reliability.draw(data).canvas.draw()


@pytest.mark.parametrize("whole", [200, 201])
@pytest.mark.parametrize("tabled", [True, False])
def test_a_part_of_the_test_images_is_called_so_beside_another_error(
    whole: int, tabled: bool
) -> None:
    key = "baseline", 0
    scores = {"all": 50.0} | ({"ece": 9.0} if tabled else {})
    figures = {key: {"correct": np.zeros(whole, bool)}}
    data = known(gather(group_of({key: sums(drawn(0))}, figures, scores=scores)))
    note = reliability.caption(data).text
    part = whole > 200
    assert ("on 200 of the 201 test samples" in note) == part
    assert ("on 200 test samples" in note) != part
    assert ("table of results is over all test samples" in note) == (part and tabled)


def test_four_intervals_fit_beside_one_another() -> None:
    """A column of a page holds 12 characters of an interval; one with two decimals is cut."""
    kept = {("baseline", s): sums(drawn(s, count=40)) for s in range(3)}
    (table,) = reliability.tables(gathered(kept))
    intervals = [cell.partition(" ")[2] for cell in table.rows[0][2:]]
    assert len(intervals) == 4 and all(0 < len(text) <= 12 for text in intervals)


@pytest.mark.parametrize("by_shots", [False, True])
def test_the_diagram_shows_accuracy_by_confidence_and_counts(by_shots: bool) -> None:
    group = simulated_group("baseline", "batchformer")
    data = known(gather(group, by_shots))
    figure = reliability.draw(data)
    columns = 3 if by_shots else 1
    assert {arm: found.colour for arm, found in data.by_arm.items()} == group.colours_of(
        data.by_arm
    )
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    of_shots = ["Accuracy, %, many", "medium", "few", "Share, %", "", ""]
    assert titles == (of_shots if by_shots else ["Accuracy, %", "Share of predictions, %"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(data.by_arm)
    for column in range(columns):
        above, below = figure.axes[column], figure.axes[columns + column]
        diagonal, *lines = above.lines
        assert np.asarray(diagonal.get_xdata()).tolist() == [0, 100]
        i = column + 1 if by_shots else 0
        for found, line, pale in zip(data.by_arm.values(), lines[::2], lines[1::2], strict=True):
            enough = found.count[i] >= FEWEST
            assert line.get_color() == pale.get_color() == found.colour
            assert (line.get_alpha(), pale.get_alpha()) == (1.0, 0.35)
            assert line.get_xdata() == pytest.approx(found.confidence[i][enough])
            assert line.get_ydata() == pytest.approx(found.accuracy[i][enough])
            pale_bins = np.isfinite(np.asarray(pale.get_xdata(), dtype=float)).sum()
            assert pale_bins == ((found.count[i] > 0) & ~enough).sum()
        steps: Any = below.patches[0]
        share = data.by_arm["baseline"].count[i]
        values, edges, _ = steps.get_data()
        assert values == pytest.approx(100 * share / share.sum())
        assert edges == pytest.approx(np.linspace(0, 100, 16))


@pytest.mark.parametrize("predictions", [FEWEST - 1, FEWEST])
def test_panels_keep_their_places_whichever_marks_there_are(predictions: int) -> None:
    """All bins full, or all of too few predictions: one of the two kinds of marks is missing."""
    parts = zip(NAMES, (1.0, 0.6, 0.5), strict=True)
    kept = {name: np.full((4, 15), predictions * share) for name, share in parts}
    figure = reliability.draw(gathered({("baseline", 0): kept}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()
    enough, few = (len(line.get_xydata()) for line in figure.axes[0].lines[1:])
    assert (enough, few) == ((15, 0) if predictions == FEWEST else (0, 15))
    above, below = (axes.get_position() for axes in figure.axes)
    assert 0.4 < above.height < 0.8 and 0 < above.y0 - below.y1 < 0.2
