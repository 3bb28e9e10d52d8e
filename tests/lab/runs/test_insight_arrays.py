"""What is seen of a run is kept, and never at the cost of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchformer.lab.engine.method import Method
from batchformer.lab.runs.insight_arrays import keep, seen_of


def test_nothing_to_see_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not keep(lambda: None, tmp_path, "a run")
    assert seen_of(Method(), None, 0) is None
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().err


def test_a_failure_is_one_line_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError("out of memory\nand much more")

    assert not keep(fails, tmp_path, "a run")
    said = capsys.readouterr().err
    assert said == "a run: no figures of relations: RuntimeError: out of memory\n"
    large = {"noise": np.random.default_rng(0).random(10**6)}
    assert not keep(lambda: large, tmp_path, "a run")
    assert "more than 5" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_seen_is_written(tmp_path: Path) -> None:
    assert keep(lambda: {"classes": np.array(["a"])}, tmp_path, "a run")
    with np.load(tmp_path / "insight.npz", allow_pickle=False) as found:
        assert found["classes"].tolist() == ["a"]
