"""Training curves: lines over seeds, words on losses, and the updates that SWAD averaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from batchformer.insight.page.html import section_of
from batchformer.lab.report.figures import training
from batchformer.lab.report.figures.curves import MOST_POINTS, curve_over_seeds, evaluated_metric
from batchformer.lab.report.figures.training import scales_of_losses, valley_table, valleys
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.names import COLOURS
from batchformer.lab.report.results.runs import read_run
from batchformer.nn.streams import stream_loss
from helpers.run_folders import RunTree, change_json, recipe_of
from helpers.simulated_networks import known


@given(
    st.lists(
        st.dictionaries(st.integers(0, 30), st.floats(-100, 100), min_size=1, max_size=20),
        min_size=1,
        max_size=4,
    )
)
def test_a_curve_is_mean_and_extremes_where_every_seed_has_a_value(
    series: list[dict[int, float]],
) -> None:
    curve = curve_over_seeds(series)
    steps = [step for step in range(31) if all(step in one for one in series)]
    assert curve.steps == steps
    for i, step in enumerate(steps):
        values = [one[step] for one in series]
        assert curve.mean[i] == pytest.approx(sum(values) / len(values), abs=1e-9)
        assert (curve.low[i], curve.high[i]) == (min(values), max(values))


def test_a_long_record_is_averaged_over_windows() -> None:
    generator = np.random.default_rng(0)
    series = [dict(enumerate(generator.normal(size=1000))) for _ in range(3)]
    curve = curve_over_seeds(series)
    assert len(curve.mean) == MOST_POINTS
    windows = np.array_split(np.arange(1000), MOST_POINTS)
    values = np.array([list(one.values()) for one in series])
    assert curve.mean[7] == pytest.approx(values[:, windows[7]].mean())
    assert curve.low[7] == pytest.approx(values[:, windows[7]].mean(1).min())
    assert curve.steps[7] == windows[7].mean()


def test_no_series_is_no_curve() -> None:
    assert curve_over_seeds([]).steps == curve_over_seeds([{}, {1: 2.0}]).steps == []


def test_the_figure_holds_every_arm_in_its_colour(tree: RunTree) -> None:
    tree.write_pairs(3)
    tree.write("batchformer", 9, finished=False)
    runs = tree.runs()
    figure = training.draw(one_group(runs))
    assert isinstance(figure, Figure)
    loss, accuracy = figure.axes
    for axes, kind, value in ((loss, "train", "loss"), (accuracy, "eval", "all")):
        assert [line.get_label() for line in axes.lines] == ["baseline", "batchformer"]
        assert [line.get_color() for line in axes.lines] == [
            COLOURS["baseline"],
            COLOURS["batchformer"],
        ]
        series = [r.series(kind, value) for r in runs if r.arm == "batchformer" and r.seed < 9]
        expected = np.mean([list(one.values()) for one in series], axis=0)
        assert axes.lines[1].get_ydata() == pytest.approx(expected)
        assert len(axes.collections) == 2, "a band for every arm"
        assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()


def test_without_evaluations_only_the_loss_is_shown(tree: RunTree) -> None:
    tree.write("baseline", 0, scores={"auc": 6.5})
    runs = tree.runs()
    assert evaluated_metric(runs) is None
    assert len(training.draw(one_group(runs)).axes) == 1


def test_what_was_logged_once_is_no_line(tree: RunTree) -> None:
    """Nearest neighbours train nothing: they log one loss and one evaluation."""
    once = [
        {"kind": "train", "epoch": 0, "step": 1, "loss": 2.6},
        {"kind": "eval", "epoch": 0, "step": 1, "all": 18.8},
    ]
    folder = tree.write("baseline", 0, recipe=recipe_of("probe", method="knn"))

    def with_records(*records: dict[str, object]) -> RunGroup:
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "metrics.jsonl").write_text(text)
        return tree.group()

    assert training.gather(with_records(*once)) is None
    second = {"kind": "eval", "epoch": 1, "step": 2, "all": 20.0}
    again = training.make(known(training.gather(with_records(*once, second))))
    assert again.caption.text.startswith("Evaluated All by update. Lines")
    (axes,) = again.draw().axes
    assert axes.get_title(loc="left") == "All, %, by update"


@pytest.mark.parametrize(("method", "said"), [("balanced_softmax", True), ("linear_probe", False)])
def test_only_losses_with_batchformer_cover_two_streams(
    tree: RunTree, method: str, said: bool
) -> None:
    tree.write_pairs(1, recipe=recipe_of(method=method))
    found = training.make(tree.group())
    assert ("covers both streams" in found.caption.text) is said


@pytest.mark.parametrize("swad", [False, True])
def test_curves_with_swad_are_of_the_network_without_it(tree: RunTree, swad: bool) -> None:
    """The score in the table has the same name and is another network's."""
    tree.write_pairs(1, recipe=recipe_of(hyper={"swad": swad}))
    runs = tree.runs()
    title = training.draw(one_group(runs)).axes[1].get_title(loc="left")
    assert ("All without SWAD" in title) == swad and title.startswith("All")
    shown = training.make(one_group(runs))
    assert ("evaluated All without SWAD by update" in shown.caption.text) == swad
    labels = {row[1] for row in shown.terminal_tables[0].rows}
    assert labels == {"Training loss", "All without SWAD" if swad else "All"}


def test_losses_on_other_scales_are_named(tree: RunTree) -> None:
    arms = ("baseline", "batchformer", "batchformer_official_loss", "baseline_loss3x")
    for arm in arms:
        tree.write(arm, 0)
    said = scales_of_losses(tree.group())
    assert said == [
        "The loss of batchformer_official_loss is 3 times the mean of both streams, and not "
        "comparable with the others.",
        "The loss of baseline_loss3x is shown before it is multiplied by 3, on the scale of the "
        "baseline's.",
    ]
    shown = training.make(tree.group())
    assert all(sentence in shown.caption.text for sentence in said)


@pytest.mark.parametrize(
    ("module", "times"),
    [
        ({"loss_scale": "mean", "mixed_weight": 4.0}, None),
        ({"loss_scale": "sum"}, "2"),
        ({"loss_scale": "sum", "mixed_weight": 0.25}, "1.25"),
        ({"loss_scale": "official", "streams": "mixed_only"}, None),
    ],
)
def test_the_scale_is_that_of_the_streams_loss(
    tree: RunTree, module: dict[str, Any], times: str | None
) -> None:
    tree.write_pairs(1, recipe=recipe_of(module=module))
    said = scales_of_losses(tree.group())
    assert [f"batchformer is {times} times" in sentence for sentence in said] == [True] * len(said)
    assert len(said) == (times is not None)
    if times is not None and "streams" not in module:
        one, weight = torch.ones(()), module.get("mixed_weight", 1.0)
        loss = stream_loss(
            lambda rows, _: rows.mean(),
            torch.ones(4),
            one.expand(2),
            loss_scale=module["loss_scale"],
            mixed_weight=weight,
        )
        assert f"{float(loss):g}" == times


@pytest.mark.parametrize(
    ("method", "hyper", "said"),
    [
        ("ride", {"reweight_epoch": 8}, "From epoch 8 on, about update 320, the loss weights cl"),
        ("ldam", {"reweight_epoch": 3}, "From epoch 3 on, about update 120, the loss weights cl"),
        ("ride", {"reweight_epoch": 11}, None),
        ("ride", {"reweight_epoch": 0}, None),
        ("balanced_softmax", {"reweight_epoch": 8}, None),
        ("vrex", {"penalty_from": 1, "penalty": 3.0}, "From epoch 1 on, about update 40, the pen"),
        ("irm", {"penalty_from": 1, "penalty": 1.0}, None),
        ("ride", None, None),
    ],
)
def test_where_a_method_changes_its_loss_is_said(
    tree: RunTree, method: str, hyper: dict[str, Any] | None, said: str | None
) -> None:
    tree.write("baseline", 0, recipe=recipe_of(method=method, hyper=hyper))
    found = training.make(tree.group())
    assert ("From epoch" in found.caption.text) == (said is not None)
    assert (said or "") in found.caption.text


def test_training_has_the_ends_of_the_curves(tree: RunTree) -> None:
    tree.write_pairs(2, "baseline")
    runs = tree.runs()
    shown = training.make(one_group(runs))
    (table,) = shown.terminal_tables
    losses = [row for row in table.rows if row[1] == "Training loss"]
    assert len(losses) == 5 and losses[0][2] == "10" and losses[-1][2] == "400"
    last = [run.series("train", "loss")[400] for run in runs]
    assert losses[-1][3] == f"{np.mean(last):.2f}"
    assert losses[-1][4] == f"{min(last):.2f} to {max(last):.2f}"
    assert len(shown.draw().axes) == 2


def test_runs_without_records_have_no_figure(tree: RunTree) -> None:
    (tree.write("baseline", 0) / "metrics.jsonl").write_text("")
    assert training.gather(tree.group()) is None


def valley(first: int, last: int, **more: Any) -> dict[str, Any]:
    evaluations = {"first_evaluation": 1 + first // 100, "last_evaluation": last // 100}
    values = {"updates": last - first + 1, "first_update": first, "last_update": last}
    return {"converged": True, **values, **evaluations, **more}


def put_in_result(folder: Path, findings: Any) -> None:
    change_json(folder / "result.json", findings=findings)


def test_a_row_for_every_arm_over_its_seeds(tree: RunTree) -> None:
    put_in_result(tree.write("baseline", 0), {"swad": valley(101, 300)})
    put_in_result(tree.write("baseline", 1), {"swad": valley(1, 300, converged=False)})
    put_in_result(tree.write("batchformer", 0), {"swad": valley(1001, 2400)})
    table = known(valley_table(tree.group()))
    evaluations = ("first evaluation", "last evaluation")
    columns = ("arm", "n", "target", "first update", "last update", *evaluations, "converged")
    assert table.columns == columns and list(table.rows) == [
        ("baseline", "2", "", "1 to 101", "300", "1 to 2", "3", "1 of 2"),
        ("batchformer", "1", "", "1,001", "2,400", "11", "24", "1 of 1"),
    ]


def test_a_row_for_every_target(tree: RunTree) -> None:
    whole = {"photo/swad": valley(1, 200), "sketch/swad": valley(101, 400), "photo/other": {}}
    put_in_result(tree.write("baseline", 0), whole)
    # Without where the evaluations were.
    short = {"updates": 200, "converged": True, "first_update": 101, "last_update": 300}
    folder = tree.write("baseline", 1)
    put_in_result(folder, {"photo/swad": short, "sketch/swad": short})
    assert valleys(read_run(folder)) == {"photo": short, "sketch": short}
    table = known(valley_table(tree.group()))
    assert list(table.rows) == [
        ("baseline", "2", "photo", "1 to 101", "200 to 300", "1", "2", "2 of 2"),
        ("baseline", "2", "sketch", "101", "300 to 400", "2", "4", "2 of 2"),
    ]


def test_the_figure_has_it_below_the_curves(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    before = training.make(tree.group())
    assert not before.tables and "SWAD" not in before.caption.text
    put_in_result(folder, {"swad": valley(1001, 2400)})
    after = training.make(tree.group())
    assert len(after.tables) == 1 and "SWAD averages" in after.caption.text
    html = section_of(after, "p").tables
    assert "first evaluation" in html and "<td>1,001</td>" in html and "target</th>" not in html


def test_runs_without_swad_or_with_damage_have_none(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    for damaged in (None, [3], {"swad": "deep"}):
        put_in_result(folder, damaged)
        assert valleys(read_run(folder)) == {}
    put_in_result(folder, {"swad": {"first_update": "early"}})
    table = known(valley_table(tree.group()))
    assert list(table.rows) == [("baseline", "1", "", "", "", "", "", "0 of 1")]
