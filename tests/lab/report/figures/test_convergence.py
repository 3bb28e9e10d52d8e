"""How fast probes learn: curves by epoch, and when one has caught up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.report.figures.convergence import caption, draw, gather, make
from batchformer.lab.report.figures.curves import MOST_POINTS
from batchformer.lab.report.results.names import COLOURS
from helpers.run_folders import RunTree, recipe_of
from helpers.simulated_networks import known

PROBE = recipe_of("probe", method="linear_probe")
#: By arm the scores of two seeds after epochs 1 to 4.
SCORES = {
    "baseline": [[20.0, 30.0, 40.0, 50.0], [30.0, 40.0, 50.0, 60.0]],
    "batchformer": [[30.0, 50.0, 52.0, 54.0], [40.0, 60.0, 62.0, 64.0]],
    "random_weights": [[10.0, 10.0, 11.0, 12.0], [10.0, 10.0, 11.0, 14.0]],
}


def log(folder: Path, records: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


def write(tree: RunTree, recipe: dict[str, Any], arms: tuple[str, ...] = tuple(SCORES)) -> None:
    for arm in arms:
        for seed, scores in enumerate(SCORES[arm]):
            records: list[dict[str, Any]] = [
                {"kind": "eval", "epoch": epoch, "step": 100 * epoch, "all": score}
                for epoch, score in enumerate(scores, start=1)
            ]
            records.append({"kind": "train", "epoch": 3, "step": 350, "loss": 1.0})
            log(tree.write(arm, seed, recipe=recipe, scores={"all": scores[-1]}), records)


@pytest.fixture
def probes(tree: RunTree) -> RunTree:
    write(tree, PROBE)
    return tree


def test_when_an_arm_has_the_final_score_of_the_baseline(probes: RunTree) -> None:
    found = known(gather(probes.group()))
    assert found.metric == "all" and found.final == 55.0
    assert list(found.curves) == ["baseline", "batchformer", "random_weights"]
    assert found.curves["baseline"].steps == [1, 2, 3, 4], "epochs, not updates"
    assert found.curves["batchformer"].mean == [35.0, 55.0, 57.0, 59.0]
    assert found.curves["batchformer"].low == [30.0, 50.0, 52.0, 54.0]
    assert found.reached == {"batchformer": 2, "random_weights": None}
    assert found.seeds == {"baseline": 2, "batchformer": 2, "random_weights": 2}
    words = caption(found).text
    assert "Lines are means over 2 seeds;" in words
    assert "The baseline ends at 55.00." in words
    assert "By batchformer this is reached at epoch 2." in words
    assert "By random_weights this is never reached in 4 epochs." in words
    assert words.endswith("epoch 38 of 90, with MoCo-v3 on ImageNet.")
    (axes,) = draw(found).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["batchformer"].get_color() == COLOURS["batchformer"]
    assert list(lines["batchformer"].get_ydata()) == [35.0, 55.0, 57.0, 59.0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks]  # type: ignore[index]
    assert places == [(2, 55.0)]
    assert any(list(line.get_ydata()) == [55.0, 55.0] for line in axes.lines)
    assert len(axes.collections) == 3, "a band for each arm"
    made = make(found)
    assert made.title == "Convergence of the probe"
    assert made.caption.alternative == f"Line plot. {made.caption.text}"
    (table,) = made.terminal_tables
    assert table.columns == ("arm", "epoch", "All") and len(table.rows) == 12
    assert table.rows[3] == ("baseline", "4", "55.00")


def test_a_long_probe_keeps_every_epoch(tree: RunTree) -> None:
    """Lines of a training are smoothed; the epoch that reaches a score must be one of the probe."""
    epochs = 3 * MOST_POINTS
    for arm, gain in (("baseline", 0.0), ("batchformer", 7.0)):
        folder = tree.write(arm, 0, recipe=PROBE)
        lines = [
            {"kind": "eval", "epoch": e, "step": e, "all": min(e + gain, epochs) / 10}
            for e in range(1, epochs + 1)
        ]
        log(folder, lines)
    found = known(gather(tree.group()))
    assert found.final == epochs / 10
    assert found.reached == {"batchformer": epochs - 7}


def test_other_methods_and_runs_without_evaluations_have_none(tree: RunTree) -> None:
    write(tree, recipe_of("tail"))
    assert gather(tree.group()) is None
    probe = RunTree(tree.root.parent / "probe")
    log(probe.write("baseline", 0, recipe=PROBE), [])
    assert gather(probe.group()) is None


def test_without_a_baseline_nothing_is_to_be_reached(tree: RunTree) -> None:
    write(tree, PROBE, ("batchformer",))
    found = known(gather(tree.group("baseline")))
    assert found.final is None and found.reached == {"batchformer": None}
    said = caption(found).text
    assert "ends at" not in said and "38" not in said
    assert len(draw(found).axes[0].lines) == 1
