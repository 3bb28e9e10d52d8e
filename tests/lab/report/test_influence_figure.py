"""The gradient figure: order of classes, means, and what it says of the paper's claim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.report.figures import influence
from batchformer.lab.report.figures.influence import cumulative_mean, gather, running_mean
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.names import COLOURS
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def group_with(root: Path, add_insight: Writer, write_run: Writer, **changes: Any) -> RunGroup:
    """Three seeds of both arms; a change replaces an array of batchformer's, given its seed."""
    for seed in range(3):
        add_insight(write_run("baseline", seed))
        folder = add_insight(write_run("batchformer", seed))
        with np.load(folder / "insight.npz") as arrays:
            kept = dict(arrays)
        kept |= {name: change(kept[name], seed) for name, change in changes.items()}
        np.savez(folder / "insight.npz", **kept)
    return one_group(find_runs(root))


def test_classes_go_from_frequent_to_rare_and_seeds_are_averaged(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    order = np.random.default_rng(0).permutation(12)
    changes = {
        name: lambda array, _: array[order]
        for name in ("train_counts", "gradient_abs", "gradient_samples")
    }
    group = group_with(runs_root, add_insight, write_run, **changes)
    data = gather(group)
    assert data is not None and list(data.by_arm) == ["batchformer"]
    assert data.counts.tolist() == sorted(data.counts.tolist(), reverse=True)
    restored = np.argsort(order)
    each = [run.insight["gradient_abs"][restored] for run in group.of("batchformer")]
    assert data.by_arm["batchformer"].values == pytest.approx(np.mean(each, 0))
    assert data.by_arm["batchformer"].correlation.holds is True


@pytest.mark.parametrize("measure", ["abs", "l2"])
@pytest.mark.parametrize("on", ["features", "images"])
def test_every_measure_is_read_from_its_own_array(
    write_run: Writer, add_insight: Writer, runs_root: Path, measure: Any, on: Any
) -> None:
    folder = add_insight(write_run("batchformer", 0))
    data = gather(one_group(find_runs(runs_root)), measure, on)
    name = f"gradient_{measure}" if on == "features" else f"gradient_images_{measure}"
    with np.load(folder / "insight.npz") as arrays:
        assert data is not None
        assert data.by_arm["batchformer"].values == pytest.approx(arrays[name])
    said = influence.words(data).note
    assert ("length" in said) == (measure == "l2")
    assert ("input images" in said) == (on == "images")


def test_the_verdict_follows_the_numbers(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    turned = {"gradient_abs": lambda array, _: array[::-1]}
    data = gather(group_with(runs_root, add_insight, write_run, **turned))
    assert data is not None
    assert "does not hold here, the opposite does" in influence.words(data).note
    (table,) = influence.numbers(data)
    assert table.rows[0][0] == "batchformer" and table.rows[0][-1] == "opposite"


def test_noise_settles_nothing(write_run: Writer, add_insight: Writer, runs_root: Path) -> None:
    noise = {"gradient_abs": lambda array, seed: np.random.default_rng(seed).random(len(array))}
    data = gather(group_with(runs_root, add_insight, write_run, **noise))
    assert data is not None and "is not settled here" in influence.words(data).note


def test_attention_to_oneself_alone_gives_nothing_to_rank(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    zero = {"gradient_abs": lambda array, _: 0 * array}
    data = gather(group_with(runs_root, add_insight, write_run, **zero), cumulative=True)
    assert data is not None
    assert "no order to speak of" in influence.words(data).note
    influence.figure(data).canvas.draw()


def test_the_figure_draws_dots_a_running_mean_and_the_cumulative_mean(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    data = gather(group_with(runs_root, add_insight, write_run), cumulative=True)
    assert data is not None and data.window == 3
    each, summed = influence.figure(data).axes
    values = data.by_arm["batchformer"].values
    dots, line = each.lines
    assert dots.get_ydata() == pytest.approx(values * 1e5)
    assert "× 10⁻⁵" in each.get_title(loc="left")
    by_hand = [np.mean(values[max(i - 1, 0) : i + 2]) for i in range(12)]
    assert line.get_ydata() == pytest.approx(np.array(by_hand) * 1e5)
    by_hand = [np.mean(values[: i + 1]) for i in range(12)]
    assert summed.lines[0].get_ydata() == pytest.approx(np.array(by_hand) * 1e5)
    assert line.get_color() == COLOURS["batchformer"]
    assert summed.get_xticklabels()[0].get_text() == "500"


def test_values_of_several_orders_are_drawn_on_a_log_scale(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    wide = {"gradient_abs": lambda array, _: 10.0 ** -np.arange(12)}
    data = gather(group_with(runs_root, add_insight, write_run, **wide))
    assert data is not None
    figure = influence.figure(data)
    assert figure.axes[0].get_yscale() == "log"
    figure.canvas.draw()
    assert "10⁻⁶" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_a_thousand_classes_are_two_hundred_dots(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("batchformer", 0), classes=1000, batches=20)
    data = gather(one_group(find_runs(runs_root)))
    assert data is not None and data.window == 101
    dots, line = influence.figure(data).axes[0].lines
    assert len(np.asarray(dots.get_xdata())) == 200
    assert len(np.asarray(line.get_xdata())) == 1000
    assert "up to 5 classes" in influence.words(data).note


@given(st.lists(st.one_of(st.floats(-10, 10), st.just(np.nan)), min_size=1, max_size=30))
def test_means_leave_out_what_was_not_measured(values: list[float]) -> None:
    array = np.array(values)

    def mean(part: np.ndarray) -> float:
        known = part[np.isfinite(part)]
        return float(known.mean()) if known.size else np.nan

    running = [mean(array[max(i - 2, 0) : i + 3]) for i in range(len(array))]
    assert running_mean(array, 5) == pytest.approx(running, abs=1e-9, nan_ok=True)
    summed = [mean(array[: i + 1]) for i in range(len(array))]
    assert cumulative_mean(array) == pytest.approx(summed, abs=1e-9, nan_ok=True)


def test_without_gradients_there_is_no_figure(
    write_run: Writer, add_insight: Writer, runs_root: Path
) -> None:
    add_insight(write_run("baseline", 0))
    assert gather(one_group(find_runs(runs_root))) is None
    assert influence.shown(one_group(find_runs(runs_root))) is None
