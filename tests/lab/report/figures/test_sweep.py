from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from batchformer.lab.report.figures.sweep import described, draw, make
from batchformer.lab.report.results.sweeps import SweepComparison
from helpers.run_folders import compared_sweep, write_sweep

VALUES = {
    ("baseline", "1"): [50.0, 51.0, 52.0],
    ("batchformer", "1"): [52.0, 53.0, 54.0],
    ("batchformer", "2"): [54.0, 55.0, 56.3],
}
PAPER = {
    "1": {"baseline": {"all": 41.0}, "batchformer": {"all": 43.2}},
    "2": {"batchformer": {"all": 43.6}},
}
Compared = Callable[..., SweepComparison]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    def compare(
        seeds: int = 3, few: Sequence[float] | None = None, **options: object
    ) -> SweepComparison:
        written = {
            cell: {
                seed: {"all": v, "few": v - 30 if few is None else few[seed]}
                for seed, v in enumerate(each[:seeds])
            }
            for cell, each in VALUES.items()
        }
        return compared_sweep(write_sweep(tmp_path, written, levels=PAPER, **options))

    return compare


def test_means_seeds_intervals_baseline_and_paper_are_drawn_where_they_are(
    compared: Compared,
) -> None:
    found = compared()
    axes, few = draw(found).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["batchformer"].get_ydata()) == pytest.approx([53.0, 55.1])
    assert list(lines["batchformer, paper"].get_ydata()) == [43.2, 43.6]
    assert set(lines["baseline"].get_ydata()) == {51.0}
    assert set(lines["baseline, paper"].get_ydata()) == {41.0}
    dots = sorted(y for line in axes.get_lines() for y in line.get_ydata())
    assert set(dots) >= {value for values in VALUES.values() for value in values}
    bars = [c for c in axes.collections if hasattr(c, "get_segments")]
    ends = [tuple(bar.get_segments()[0][:, 1]) for bar in bars]
    for level, end in zip(("1", "2"), ends, strict=True):
        summary = found.scores[("batchformer", level), "all"].summary
        assert end == pytest.approx((summary.low, summary.high))
    assert [label.get_text() for label in few.get_xticklabels()] == ["1", "2"]
    assert "Few" in few.get_title("left") and "by layers" in few.get_title("left")
    made = make(found)
    assert made is not None and "the baseline, which no level changes, its band its " in (
        made.caption.note
    )
    text = described(found)
    assert "All of batchformer, 1: 53.00 [50.52, 55.48], paper 43.2; 2: 55.10 " in text
    assert "All of baseline, 1: 51.00 [48.52, 53.48], paper 41.0" in text


def test_bars_end_where_an_accuracy_can_not_go_on(compared: Compared) -> None:
    few = draw(compared(few=(0.0, 1.0, 9.0))).axes[1]
    bars = [c for c in few.collections if hasattr(c, "get_segments")]
    ends = [bar.get_segments()[0][:, 1].tolist() for bar in bars]
    assert len(ends) == 2 and all(low == 0.0 and 10 < high < 100 for low, high in ends)


def test_two_seeds_have_dots_and_no_bars(compared: Compared) -> None:
    axes = draw(compared(seeds=2)).axes[0]
    assert not [c for c in axes.collections if hasattr(c, "get_segments")]
    assert not axes.patches


def test_a_baseline_of_each_level_is_a_line_and_no_band(compared: Compared) -> None:
    axes = draw(compared(baseline="each")).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["baseline"].get_ydata()) == [51.0] and not axes.patches


def test_levels_without_an_order_are_not_joined(tmp_path: Path) -> None:
    for i, (names, joined) in enumerate(((("shared", "mixed_only"), False), (("0.25", "4"), True))):
        values = {("batchformer", name): {s: {"all": 50.0 + s} for s in range(3)} for name in names}
        folder = write_sweep(tmp_path / str(i), values, reference=names[0])
        axes = draw(compared_sweep(folder)).axes[0]
        (line,) = [line for line in axes.get_lines() if line.get_label() == "batchformer"]
        assert (line.get_linewidth() > 0) == joined
