"""Calibration from sums in bins, against torchmetrics, and the diagram of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from batchformer.lab.report.figures import reliability
from batchformer.lab.report.figures.reliability import NAMES, calibration_error, gather
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def test_the_error_is_that_of_torchmetrics() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.1, 0.999, 500)
    right = generator.random(500) < confidence**2
    sums = np.zeros((3, 1, 15))
    for c, r in zip(confidence, right, strict=True):
        sums[:, 0, int(c * 15)] += (1, c, r)
    expected = binary_calibration_error(
        torch.from_numpy(confidence), torch.from_numpy(right).long(), n_bins=15
    )
    assert calibration_error(*sums) == pytest.approx([100 * float(expected)], rel=1e-5)


def test_seeds_are_pooled_in_the_bins_and_averaged_in_the_error(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    folders = [add_insight(write_run("baseline", seed)) for seed in range(3)]
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    found = data.by_arm["baseline"]
    each = []
    for folder in folders:
        with np.load(folder / "insight.npz") as arrays:
            each.append([arrays[name] for name in NAMES])
    count, confidence, correct = np.sum(each, 0)
    used = count > 0
    assert found.accuracy[used] == pytest.approx(100 * correct[used] / count[used])
    assert found.confidence[used] == pytest.approx(100 * confidence[used] / count[used])
    errors = [100 * np.abs(c - r)[0].sum() / n[0].sum() for n, c, r in each]
    assert found.ece[0] is not None and found.ece[0].values == pytest.approx(errors)
    assert f"baseline {np.mean(errors):.1f}%" in reliability.words(data).note
    assert reliability.numbers(data)[0].columns == ("arm", "n", "all", "many", "medium", "few")
    bins = reliability.bins_table(data)
    total = sum(int(row[1].replace(",", "")) for row in bins.rows)
    assert total == int(count[0].sum())


@pytest.mark.parametrize("by_shots", [False, True])
def test_the_diagram_shows_accuracy_by_confidence_and_counts(
    write_run: Writer, add_insight: Writer, runs_root: Path, by_shots: bool
) -> None:
    for arm in ("baseline", "batchformer"):
        add_insight(write_run(arm, 0))
    data = gather(one_group(find_runs(runs_root)), by_shots)
    assert data is not None
    figure = reliability.figure(data)
    columns = 3 if by_shots else 1
    assert len(figure.axes) == 2 * columns
    for column in range(columns):
        above, below = figure.axes[column], figure.axes[columns + column]
        diagonal, *lines = above.lines
        assert np.asarray(diagonal.get_xdata()).tolist() == [0, 100]
        i = column + 1 if by_shots else 0
        for arm, line, pale in zip(data.by_arm, lines[::2], lines[1::2], strict=True):
            found = data.by_arm[arm]
            enough = found.count[i] >= reliability.FEWEST
            assert line.get_xdata() == pytest.approx(found.confidence[i][enough])
            assert line.get_ydata() == pytest.approx(found.accuracy[i][enough])
            pale_bins = np.isfinite(np.asarray(pale.get_xdata(), dtype=float)).sum()
            assert pale_bins == ((found.count[i] > 0) & ~enough).sum()
        steps: Any = below.patches[0]
        share = data.by_arm["baseline"].count[i]
        assert steps.get_data().values == pytest.approx(100 * share / share.sum())


@pytest.mark.parametrize("predictions", [3, 500])
def test_panels_keep_their_places_whichever_marks_there_are(
    write_run: Writer,
    add_insight: Writer,
    make_insight: Writer,
    runs_root: Path,
    predictions: int,
) -> None:
    """All bins full, or all of too few predictions: one of the two kinds of marks is missing."""
    insight = make_insight("baseline", 0)
    for name, share in zip(NAMES, (1.0, 0.6, 0.5), strict=True):
        insight[name][:] = np.asarray(predictions * share).astype(insight[name].dtype)
    add_insight(write_run("baseline", 0), insight)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None
    figure = reliability.figure(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()
    above, below = (axes.get_position() for axes in figure.axes)
    assert 0.4 < above.height < 0.8 and 0 < above.y0 - below.y1 < 0.2


def test_a_group_without_predictions_has_no_panel_and_no_number(
    write_run: Writer, add_insight: Writer, make_insight: Writer, runs_root: Path
) -> None:
    insight = make_insight("baseline", 0)
    for name in NAMES:
        insight[name][2] = 0
    add_insight(write_run("baseline", 0), insight)
    data = gather(one_group(find_runs(runs_root)), by_shots=True)
    assert data is not None and data.groups == [1, 3]
    assert len(reliability.figure(data).axes) == 4
    assert reliability.numbers(data)[0].rows[0][4] == ""


def test_runs_without_confidences_have_no_figure(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    assert reliability.shown(one_group(find_runs(runs_root))) is None


@pytest.mark.parametrize("by_shots", [False, True])
def test_one_shot_group_is_all(
    write_run: Writer,
    add_insight: Writer,
    make_insight: Writer,
    in_one_group: Writer,
    runs_root: Path,
    by_shots: bool,
) -> None:
    add_insight(write_run("baseline", 0), in_one_group(make_insight("baseline", 0)))
    data = gather(one_group(find_runs(runs_root)), by_shots)
    assert data is not None and data.groups == [0]
    (table,) = reliability.numbers(data)
    assert table.columns == ("arm", "n", "all") and len(table.rows[0]) == 3
    assert reliability.figure(data).axes[0].get_title(loc="left") == "Accuracy, %"
