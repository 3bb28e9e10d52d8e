from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from batchformer.report.provenance import provenance, version_notes
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


def test_several_versions_of_the_code_are_said_with_what_they_ran(
    write_run: Writer, runs_root: Path
) -> None:
    old, new = {"code_sha256": "a" * 64}, {"code_sha256": "b" * 64}
    for seed in range(3):
        write_run("baseline", seed, provenance=old)
        write_run("batchformer", seed, provenance=new)
        write_run("batchformer_self", seed, provenance=old if seed == 1 else new)
    runs = find_runs(runs_root)
    assert version_notes("tail", runs, lambda run: run.arm) == [
        "tail was run with 2 versions of the code: "
        "aaaaaaaaaaaa (baseline, batchformer_self seed 1); "
        "bbbbbbbbbbbb (batchformer, batchformer_self seeds 0 2)"
    ]
    alone = [run for run in runs if run.arm == "baseline"]
    assert version_notes("tail", alone, lambda run: run.arm) == []
