from __future__ import annotations

from batchformer.lab.report.results.provenance import provenance, version_notes
from helpers.run_folders import RunTree, change_json


def test_what_runs_agree_on_is_said_once(tree: RunTree) -> None:
    tree.write_pairs(3, "baseline", provenance={"git": None, "driver": "555"})
    facts = provenance(tree.runs())
    assert facts["torch"] == ["2.6.0"]
    assert facts["Hardware"] == ["Example CPU, 2 cores, 8 GB"]
    assert facts["Code hash (SHA-256)"] == ["5f1d" * 16]
    assert facts["driver"] == ["555"]
    assert facts["Minutes a run"] == ["0.2"]
    assert "Commit" not in facts
    assert len(facts["Command"]) == 3
    assert facts["Started"] == ["2025-03-01T10:00:00+00:00 to 2025-03-03T10:00:00+00:00"]


def test_what_differs_is_listed(tree: RunTree) -> None:
    tree.write("baseline", 0)
    tree.write("baseline", 1, provenance={"torch": "2.7.0"})
    assert provenance(tree.runs())["torch"] == ["2.6.0", "2.7.0"]


def test_minutes_of_long_runs_are_written_in_full(tree: RunTree) -> None:
    tree.write("baseline", 0)
    change_json(tree.write("baseline", 1) / "result.json", minutes=1304.2)
    assert provenance(tree.runs())["Minutes a run"] == ["0.2 to 1,304"]


def test_no_run_has_no_provenance() -> None:
    assert provenance([]) == {}


def test_several_versions_of_the_code_are_said_with_what_they_ran(tree: RunTree) -> None:
    old, new = {"code_sha256": "a" * 64}, {"code_sha256": "b" * 64}
    for seed in range(3):
        tree.write("baseline", seed, provenance=old)
        tree.write("batchformer", seed, provenance=new)
        tree.write("batchformer_self", seed, provenance=old if seed == 1 else new)
    runs = tree.runs()
    assert version_notes("tail", runs, lambda run: run.arm) == [
        "tail was run with 2 versions of the code: "
        "aaaaaaaaaaaa (baseline, batchformer_self seed 1); "
        "bbbbbbbbbbbb (batchformer, batchformer_self seeds 0 2)"
    ]
    alone = [run for run in runs if run.arm == "baseline"]
    assert version_notes("tail", alone, lambda run: run.arm) == []


def test_a_run_of_several_versions_is_said_with_all_that_its_network_depends_on(
    tree: RunTree,
) -> None:
    """The second sitting is replaced by the third, which goes on from the same checkpoint."""
    old, lost, new = ({"code_sha256": letter * 64} for letter in "abc")
    sittings = [old | {"from_update": 0}, lost | {"from_update": 40}, new | {"from_update": 40}]
    tree.write("baseline", 0, provenance=old)
    tree.write("batchformer", 0, provenance=old, sittings=sittings)
    runs = tree.runs()
    assert version_notes("tail", runs, lambda run: run.arm) == [
        "tail was run with 2 versions of the code: aaaaaaaaaaaa (baseline); "
        "aaaaaaaaaaaa, then cccccccccccc from update 40 (batchformer)"
    ]
    assert version_notes("tail", runs[1:], lambda run: run.arm) == [
        "tail was run with 2 versions of the code: "
        "aaaaaaaaaaaa, then cccccccccccc from update 40 (batchformer)"
    ]
    facts = provenance(runs)
    assert facts["Code hash (SHA-256)"] == ["a" * 64, "c" * 64]
    assert facts["Resumed"] == ["batchformer seed 0 at update 40"]
    assert "stage" not in facts and "Resumed" not in provenance(runs[:1])


def test_sittings_that_are_none_are_damage(tree: RunTree) -> None:
    tree.write("baseline", 0, sittings=[{"from_update": "0"}])
    (run,) = tree.runs()
    assert run.state == "damaged" and "'sittings' is not a list of objects" in str(run.damage)
