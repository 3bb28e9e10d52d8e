"""How fast probes learn: curves by epoch, and when one has caught up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.report.figures.convergence import caption, draw, first_at_least, gather, make
from batchformer.lab.report.figures.curves import MOST_POINTS
from batchformer.lab.report.page.sections import sections_of
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.names import COLOURS
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]
#: By arm the scores of two seeds after epochs 1 to 4.
SCORES = {
    "baseline": [[20.0, 30.0, 40.0, 50.0], [30.0, 40.0, 50.0, 60.0]],
    "batchformer": [[30.0, 50.0, 52.0, 54.0], [40.0, 60.0, 62.0, 64.0]],
    "random_weights": [[10.0, 10.0, 11.0, 12.0], [10.0, 10.0, 11.0, 14.0]],
}


def write(write_run: Writer, recipe: dict[str, Any], arms: tuple[str, ...] = tuple(SCORES)) -> None:
    for arm in arms:
        for seed, scores in enumerate(SCORES[arm]):
            folder = write_run(arm, seed, recipe=recipe, scores={"all": scores[-1]})
            lines = [
                {"kind": "eval", "epoch": epoch, "step": 100 * epoch, "all": score}
                for epoch, score in enumerate(scores, start=1)
            ]
            lines.append({"kind": "train", "epoch": 3, "step": 350, "loss": 1.0})
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / "metrics.jsonl").write_text(text)


@pytest.fixture
def probes(write_run: Writer, recipe_of: Writer, runs_root: Path) -> Path:
    write(write_run, recipe_of("probe", method="linear_probe"))
    return runs_root


def test_when_an_arm_has_the_final_score_of_the_baseline(probes: Path) -> None:
    found = gather(one_group(find_runs(probes)))
    assert found is not None and found.metric == "all" and found.final == 55.0
    assert list(found.curves) == ["baseline", "batchformer", "random_weights"]
    assert found.curves["baseline"].steps == [1, 2, 3, 4], "epochs, not updates"
    assert found.curves["batchformer"].mean == [35.0, 55.0, 57.0, 59.0]
    assert found.curves["batchformer"].low == [30.0, 50.0, 52.0, 54.0]
    assert found.reached == {"batchformer": 2, "random_weights": None}
    assert found.seeds == {"baseline": 2, "batchformer": 2, "random_weights": 2}


def test_words(probes: Path) -> None:
    found = gather(one_group(find_runs(probes)))
    assert found is not None
    words = caption(found)
    assert "(baseline 2, batchformer 2, random_weights 2)" in words
    assert "The baseline ends at 55.00." in words
    assert "By batchformer this is reached at epoch 2." in words
    assert "By random_weights this is never reached in 4 epochs." in words
    assert words.endswith("epoch 38 of 90, with MoCo-v3 on ImageNet.")


def test_the_figure(probes: Path) -> None:
    found = gather(one_group(find_runs(probes)))
    assert found is not None
    (axes,) = draw(found).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["batchformer"].get_color() == COLOURS["batchformer"]
    assert list(lines["batchformer"].get_ydata()) == [35.0, 55.0, 57.0, 59.0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks]  # type: ignore[index]
    assert places == [(2, 55.0)]
    assert any(list(line.get_ydata()) == [55.0, 55.0] for line in axes.lines)
    assert len(axes.collections) == 3, "a band for each arm"


def test_a_long_probe_keeps_every_epoch(
    write_run: Writer, recipe_of: Writer, runs_root: Path
) -> None:
    """Lines of a training are smoothed; the epoch that reaches a score must be one of the probe."""
    epochs = 3 * MOST_POINTS
    for arm, gain in (("baseline", 0.0), ("batchformer", 7.0)):
        folder = write_run(arm, 0, recipe=recipe_of("probe", method="linear_probe"))
        lines = [
            {"kind": "eval", "epoch": e, "step": e, "all": min(e + gain, epochs) / 10}
            for e in range(1, epochs + 1)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text)
    found = gather(one_group(find_runs(runs_root)))
    assert found is not None and found.final == epochs / 10
    assert found.reached == {"batchformer": epochs - 7}


def test_it_is_a_section_of_the_page(probes: Path) -> None:
    sections = sections_of(one_group(find_runs(probes)), "a")
    (section,) = [one for one in sections if one.title == "Convergence of the probe"]
    assert section.html.startswith("<svg ")
    assert f'aria-label="Line plot. {section.note}"' in section.html
    made = make(one_group(find_runs(probes)))
    assert made is not None
    (table,) = made.folded_tables
    assert table.columns == ("arm", "epoch", "All") and len(table.rows) == 12
    assert table.rows[3] == ("baseline", "4", "55.00")


def test_other_methods_have_no_such_section(
    write_run: Writer, recipe_of: Writer, runs_root: Path
) -> None:
    write(write_run, recipe_of("tail"))
    group = one_group(find_runs(runs_root))
    assert gather(group) is None
    assert all("probe" not in one.title for one in sections_of(group, "a"))


def test_without_a_baseline_nothing_is_to_be_reached(
    write_run: Writer, recipe_of: Writer, runs_root: Path
) -> None:
    write(write_run, recipe_of("probe", method="linear_probe"), ("batchformer",))
    found = gather(one_group(find_runs(runs_root), "baseline"))
    assert found is not None and found.final is None and found.reached == {"batchformer": None}
    assert "ends at" not in caption(found) and "38" not in caption(found)
    assert len(draw(found).axes[0].lines) == 1


def test_runs_without_evaluations(write_run: Writer, recipe_of: Writer, runs_root: Path) -> None:
    folder = write_run("baseline", 0, recipe=recipe_of("probe", method="linear_probe"))
    (folder / "metrics.jsonl").write_text("")
    assert gather(one_group(find_runs(runs_root))) is None


def test_the_first_epoch_counts_even_if_the_score_falls_again() -> None:
    assert first_at_least([1, 2, 3], [1.0, 9.0, 2.0], 5.0) == 2
    assert first_at_least([], [], 5.0) is None
