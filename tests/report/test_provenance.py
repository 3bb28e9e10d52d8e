from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from batchformer.report.provenance import provenance
from batchformer.report.runs import find_runs

Writer = Callable[..., Any]


def test_what_runs_agree_on_is_said_once(write_run: Writer, runs_root: Path) -> None:
    for seed in range(3):
        write_run("baseline", seed, provenance={"git": None, "driver": "555"})
    facts = provenance(find_runs(runs_root))
    assert facts["torch"] == ["2.6.0"]
    assert facts["Hardware"] == ["Example CPU, 2 cores, 8 GB"]
    assert facts["Code hash (SHA-256)"] == ["5f1d" * 16]
    assert facts["driver"] == ["555"]
    assert facts["Minutes a run"] == ["0.2"]
    assert "Commit" not in facts
    assert len(facts["Command"]) == 3
    assert facts["Started"] == ["2025-03-01T10:00:00+00:00 to 2025-03-03T10:00:00+00:00"]


def test_what_differs_is_listed(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    write_run("baseline", 1, provenance={"torch": "2.7.0"})
    assert provenance(find_runs(runs_root))["torch"] == ["2.6.0", "2.7.0"]


def test_no_run_has_no_provenance() -> None:
    assert provenance([]) == {}
