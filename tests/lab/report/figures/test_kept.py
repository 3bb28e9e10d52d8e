"""Which arrays of which runs a figure is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.report.figures.insight_arrays import arrays_by_arm, over, safe_divide
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def test_runs_without_an_array_or_with_other_classes_are_left_out(
    write_run: Writer, add_insight: Writer, make_insight: Writer, runs_root: Path
) -> None:
    for seed in range(2):
        add_insight(write_run("baseline", seed))
        add_insight(write_run("batchformer", seed))
    add_insight(write_run("batchformer", 2), make_insight("batchformer", 2, classes=13))
    write_run("batchformer", 3)
    (write_run("batchformer", 4) / "insight.npz").write_bytes(b"PK\x03\x04 cut")
    group = one_group(find_runs(runs_root))
    found = arrays_by_arm(group, "train_counts", "spread")
    assert {arm: list(runs) for arm, runs in found.items()} == {
        "baseline": [0, 1],
        "batchformer": [0, 1],
    }
    assert over(found) == "baseline 2, batchformer 2"
    with np.load(runs_root / "tail/batchformer/seed1/insight.npz") as arrays:
        assert np.array_equal(found["batchformer"][1]["spread"], arrays["spread"])
    assert list(arrays_by_arm(group, "attention")) == ["batchformer"]
    assert arrays_by_arm(group, "spread", "no such array") == {}


def test_counts_are_broadcast_and_nothing_over_nothing_is_unknown() -> None:
    found = safe_divide(np.array([[2.0, 4.0], [0.0, 0.0]]), np.array([[2], [0]]))
    assert found[0].tolist() == [1.0, 2.0] and np.isnan(found[1]).all()
