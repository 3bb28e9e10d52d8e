from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.report.figures.insight_arrays import image_count
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


@pytest.mark.parametrize(
    ("images", "part", "words"),
    [(96, True, "96 of the 400 test images"), (400, False, "400 test images")],
)
def test_a_part_is_told_from_the_whole(
    write_run: Writer, runs_root: Path, images: int, part: bool, words: str
) -> None:
    folder = write_run("baseline", 0)
    np.savez(folder / "insight.npz", reliability_count=np.ones((1, 5)))
    seen = image_count(one_group(find_runs(runs_root)), images)
    assert (seen.part, seen.words) == (part, words)


def test_where_the_whole_is_not_known_no_part_is_claimed(
    write_run: Writer, runs_root: Path
) -> None:
    write_run("baseline", 0)  # was not looked at
    seen = image_count(one_group(find_runs(runs_root)), 96)
    assert (seen.whole, seen.part, seen.words) == (None, False, "96 test images")
