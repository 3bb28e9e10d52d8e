from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.report.results.sweeps import SweepComparison, compare_sweep, split_sweeps
from batchformer.lab.report.results.tables import (
    level_difference_rows,
    level_rows,
    other_rows,
    print_sweep,
    sweep_headline,
)
from run_folders import write_sweep

Compared = Callable[..., SweepComparison]
BASELINE, ONE = ("baseline", "1"), ("batchformer", "1")
TWO, SIXTEEN = ("batchformer", "2"), ("batchformer", "16")
PAPER = {
    "1": {"baseline": {"all": 41.0}, "batchformer": {"all": 43.2, "few": 25.6}},
    "2": {"batchformer": {"all": 43.6}},
    "16": {},
}
VALUES = {
    BASELINE: [50.0, 51.0, 52.0],
    ONE: [52.0, 53.0, 54.0],
    TWO: [54.0, 55.0, 56.3],
    SIXTEEN: [52.5, 52.8, 54.0],
}


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    def compare(values: Mapping[tuple[str, str], list[float]], **options: Any) -> SweepComparison:
        written = {
            cell: {s: {"all": v, "few": v - 30, "ece": 10 + 3 * s} for s, v in enumerate(each)}
            for cell, each in values.items()
        }
        folder = write_sweep(tmp_path, written, **options)
        (sweep,), _ = split_sweeps(find_runs(folder))
        return compare_sweep(sweep)

    return compare


def test_rows_by_hand(compared: Compared) -> None:
    found = compared(VALUES, levels=PAPER)
    # sd 1 over 3 seeds: 4.302653 / sqrt(3) to each side.
    assert level_rows(found)[:2] == [
        ("any", "baseline", "3", "51.00", "1.00", "[48.52, 53.48]", "41.0"),
        ("1", "batchformer", "3", "53.00", "1.00", "[50.52, 55.48]", "43.2"),
    ]
    # Differences 2, 2, 2.3: mean 2.1, sd 0.1732, 0.4303 to each side, t = 21, p = 0.0023.
    two, sixteen = level_difference_rows(found.to_reference)
    assert two[:5] == ("2", "batchformer", "+2.10", "[+1.67, +2.53]", "0.002")
    assert two[6:] == ("+0.4", "gain")
    # Differences 0.5, -0.2, 0: mean 0.1, sd 0.3606, 0.8957 to each side.
    assert sixteen[2:4] == ("+0.10", "[-0.80, +1.00]") and sixteen[6:] == ("", "inside the noise")
    # ECE is 3 times the seed beside 10: mean 13, sd 3.
    assert other_rows(found)[1] == ("1", "batchformer", "23.00 ±1.00 (25.6)", "13.00 ±3.00")
    # 54, 55, 56.3 less 30: mean 25.1, sd sqrt((1.1**2 + 0.1**2 + 1.2**2) / 2) = 1.1533.
    assert other_rows(found)[2] == ("2", "batchformer", "25.10 ±1.15", "13.00 ±3.00")


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_and_says_what_was_corrected(compared: Compared, width: int) -> None:
    stream = io.StringIO()
    print_sweep(compared(VALUES, levels=PAPER), Console(file=stream, width=width))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for expected in (
        "depth Points of All compared with layers 1. After correction: 2 +2.10 [+1.67, +2.53].",
        "All by layers",
        "All, difference to layers 1",
        "All, difference to the baseline",
        "This sweep holds 5 comparisons, 4 of them tested; Holm's p-values are corrected over",
        "Other metrics, mean ±sd over seeds, the paper's in brackets; not tested; lower is better "
        "for ECE",
    ):
        assert expected in words, expected


def test_headlines(compared: Compared) -> None:
    noise = compared({ONE: [50.0, 51.0, 52.0], TWO: [51.0, 50.0, 52.5]}, name="noise")
    assert sweep_headline(noise) == (
        "Points of All compared with layers 1. Inside the noise: 2 +0.17 [-2.42, +2.75]."
    )
    # Its interval leaves out 0, and Holm's correction over the sweep's five tests undoes it.
    values = {("baseline", "1"): [50.0, 51.0, 52.0], ONE: [50.1, 51.3, 51.9]}
    undone = compared(
        values | {TWO: [51.0, 52.5, 53.6], ("batchformer", "4"): [50.9, 51.0, 52.4]}, name="undone"
    )
    text = sweep_headline(undone)
    assert undone.to_reference[TWO].outcome == "gain" and not undone.to_reference[TWO].stands
    assert (
        "Only without correction: 2 +1.27 [" in text
        and "of the sweep, it is not significant." in text
    )
    assert text.endswith("].") and "Inside the noise: 4 +0.33" in text
    few = compared({ONE: [50.0, 51.0], TWO: [51.0, 50.0]}, name="few")
    assert "Too few seeds for a verdict on layers" in sweep_headline(few)
    assert [row[:4] for row in level_rows(few)] == [
        ("1", "batchformer", "2", "50.00, 51.00"),
        ("2", "batchformer", "2", "51.00, 50.00"),
    ]
    assert other_rows(few)[0] == ("1", "batchformer", "20.00, 21.00", "10.00, 13.00")
    alone = compared({TWO: [51.0, 50.0]}, name="alone", levels={"1": {}, "2": {}})
    assert "No level shares a finished seed with layers 1" in sweep_headline(alone)


def test_every_cell_stays_on_one_line_of_100_columns(tmp_path: Path) -> None:
    numbers = {"many": 61.5, "medium": 45.1, "few": 25.6}
    levels = {name: {"batchformer": {"all": 51.1, **numbers}} for name in ("shared", "mixed_only")}
    scores = {"all": 51.1, **numbers, "ece": 12.5}
    written = {
        ("batchformer", level): {s: {k: v + 1.1 * s for k, v in scores.items()} for s in range(3)}
        for level in levels
    }
    folder = write_sweep(tmp_path, written, levels=levels, reference="shared")
    (sweep,), _ = split_sweeps(find_runs(folder))
    stream = io.StringIO()
    print_sweep(compare_sweep(sweep), Console(file=stream, width=100))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "level arm Many Medium Few ECE" in lines
    expected = "62.60 ±1.10 (61.5) 46.20 ±1.10 (45.1) 26.70 ±1.10 (25.6) 13.60 ±1.10"
    assert f"mixed_only batchformer {expected}" in lines
