from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchformer.lab.report.results.runs import Arrays, RecordedRun, find_runs, read_run
from helpers.run_folders import RunTree, recipe_of, write_insight
from helpers.simulated_networks import known


def names(runs: list[RecordedRun]) -> list[str]:
    return [run.name for run in runs]


def test_a_run_is_read_as_it_was_written(tree: RunTree) -> None:
    folder = tree.write("batchformer", 3, scores={"all": 71.25, "few": 40.0})
    run = read_run(folder)
    assert (run.arm, run.seed, run.state, run.damage, run.remarks) == (
        "batchformer",
        3,
        "finished",
        None,
        (),
    )
    assert run.name == "tail/batchformer/seed3"
    assert run.scores == {"all": 71.25, "few": 40.0}
    assert run.recipe == json.loads((folder / "config.json").read_text())["recipe"]
    assert run.provenance["torch"] == "2.6.0"
    assert run.data == {"split_sha256": "0" * 64}
    assert [record["step"] for record in run.metrics if record["kind"] == "eval"] == list(
        range(40, 401, 40)
    )
    with np.load(folder / "figures.npz") as arrays:
        assert np.array_equal(run.figures["per_class"], arrays["per_class"])
        assert set(run.figures) == set(arrays)
    assert len(run.insight) == 0, "no network was looked at"
    np.savez(folder / "insight.npz", spread=np.arange(3))
    assert run.insight["spread"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("level", ["", "tail", "tail/baseline", "tail/baseline/seed0"])
def test_every_level_of_the_tree_is_understood(tree: RunTree, level: str) -> None:
    tree.write("batchformer", 0)
    tree.write("baseline", 0)
    expected = {
        "": ["tail/baseline/seed0", "tail/batchformer/seed0"],
        "tail": ["tail/baseline/seed0", "tail/batchformer/seed0"],
        "tail/baseline": ["tail/baseline/seed0"],
        "tail/baseline/seed0": ["tail/baseline/seed0"],
    }
    assert names(find_runs(tree.root / level)) == expected[level]
    assert names(find_runs([str(tree.root / level)])) == expected[level]


def test_overlapping_paths_count_a_run_once(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    assert len(find_runs([tree.root, folder, tree.root / "tail"])) == 1


def test_runs_come_by_recipe_then_arm_then_seed(tree: RunTree) -> None:
    for arm, seed in [("other", 0), ("batchformer", 10), ("batchformer", 2), ("baseline", 0)]:
        tree.write(arm, seed)
    tree.write("batchformer", 0, recipe=recipe_of("a"))
    assert names(tree.runs()) == [
        "a/batchformer/seed0",
        "tail/baseline/seed0",
        "tail/batchformer/seed2",
        "tail/batchformer/seed10",
        "tail/other/seed0",
    ]


def test_a_path_that_is_not_there_is_named(tree: RunTree) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*seed<k>"):
        find_runs([tree.root / "nowhere"])


def test_a_folder_without_runs_gives_none(tmp_path: Path) -> None:
    (tmp_path / "seedling" / "x").mkdir(parents=True)
    assert find_runs(tmp_path) == []


DAMAGES = {
    "config is not JSON": ("config.json", b'{"recipe": ', "config.json is not JSON"),
    "config is a list": ("config.json", b"[]", "JSON object"),
    "config without an arm": ("config.json", b'{"recipe": {}, "seed": 0}', "no 'arm'"),
    "config is not text": ("config.json", b"\xff\xfe\x00", "config.json is not JSON"),
    "remarks are a number": (
        "config.json",
        b'{"recipe": {}, "arm": "batchformer", "seed": 1, "data": {"remarks": 5}}',
        "are not a list",
    ),
    "trained is a list": (
        "config.json",
        b'{"recipe": {}, "arm": "batchformer", "seed": 1, "trained": []}',
        "'trained' is not an object",
    ),
    "no config": ("config.json", None, "config.json cannot be read"),
    "no metrics": ("metrics.jsonl", None, "metrics.jsonl cannot be read"),
    "empty result": ("result.json", b"", "result.json is not JSON"),
    "result without metrics": ("result.json", b'{"minutes": 1}', "no 'metrics'"),
    "a word for a score": ("result.json", b'{"metrics": {"all": "high"}}', "'all' is 'high'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_and_loses_no_other(tree: RunTree, damage: str) -> None:
    file, content, expected = DAMAGES[damage]
    tree.write("baseline", 0)
    tree.write("batchformer", 0)
    broken = tree.write("batchformer", 1)
    if content is None:
        (broken / file).unlink()
    else:
        (broken / file).write_bytes(content)
    runs = tree.runs()
    assert {run.name: run.state for run in runs} == {
        "tail/baseline/seed0": "finished",
        "tail/batchformer/seed0": "finished",
        "tail/batchformer/seed1": "damaged",
    }
    reason = known(next(run.damage for run in runs if run.state == "damaged"))
    assert expected in reason


def test_without_a_result_a_run_is_unfinished(tree: RunTree) -> None:
    run = read_run(tree.write("baseline", 0, finished=False))
    assert (run.state, run.result, run.scores) == ("unfinished", None, {})
    assert run.remarks == (), "an unfinished run has no figures yet"


def test_a_torn_last_line_is_ignored_and_another_is_remarked(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    whole = (folder / "metrics.jsonl").read_text()
    before = read_run(folder).metrics
    (folder / "metrics.jsonl").write_text(whole + '{"kind": "train", "ep')
    torn = read_run(folder)
    assert (torn.metrics, torn.remarks) == (before, ())
    (folder / "metrics.jsonl").write_text("what?\n" + whole)
    changed = read_run(folder)
    assert changed.state == "finished"
    assert (changed.metrics, changed.remarks) == (before, ("metrics.jsonl: unreadable line 1",))


def test_after_a_resume_the_later_record_holds(tree: RunTree) -> None:
    folder = tree.write("baseline", 0)
    records = [
        {"kind": "train", "step": 10, "loss": 3.0},
        {"kind": "train", "step": 20, "loss": 2.0},
        {"kind": "eval", "step": 20, "all": 50.0},
        {"kind": "train", "step": 20, "loss": 1.0},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert read_run(folder).series("train", "loss") == {10: 3.0, 20: 1.0}
    assert read_run(folder).series("eval", "all") == {20: 50.0}


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 not really"])
def test_a_run_whose_figures_are_gone_keeps_its_scores(
    tree: RunTree, content: bytes | None
) -> None:
    folder = tree.write("baseline", 0, scores={"all": 60.0})
    (folder / "figures.npz").unlink()
    if content is not None:
        (folder / "figures.npz").write_bytes(content)
    run = read_run(folder)
    assert (run.state, run.scores, dict(run.figures)) == ("finished", {"all": 60.0}, {})
    assert len(run.remarks) == 1
    assert run.remarks[0].startswith("figures.npz is ")


def test_a_damaged_insight_is_remarked_and_a_missing_one_is_not(tree: RunTree) -> None:
    """Figures of samples are means over the runs that have it, so a lost one must be named."""
    folder = tree.write("batchformer", 0)
    assert read_run(folder).remarks == ()
    write_insight(folder)
    assert read_run(folder).remarks == ()
    whole = (folder / "insight.npz").read_bytes()
    (folder / "insight.npz").write_bytes(whole[: len(whole) // 2])
    (remark,) = read_run(folder).remarks
    assert remark.startswith("insight.npz is damaged") and "--compute" in remark


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["config.json", "metrics.jsonl", "result.json", "figures.npz"]), st.floats(0, 1)
)
def test_a_file_cut_anywhere_never_raises(tree: RunTree, file: str, share: float) -> None:
    folder = tree.write("baseline", 0)
    content = (folder / file).read_bytes()
    cut = int(share * len(content))
    (folder / file).write_bytes(content[:cut])
    run = find_runs(folder)[0]
    whole = cut == len(content)
    if file in ("config.json", "result.json"):
        assert run.state == ("finished" if whole else "damaged")
    else:
        assert run.state == "finished"
        assert whole or file == "metrics.jsonl" or run.remarks


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "figures.npz", trap=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert Arrays(tmp_path / "figures.npz").get("trap") is None


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_changed_byte_gives_the_array_or_nothing(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "figures.npz"
    kept = np.arange(50.0)
    np.savez_compressed(path, kept=kept)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    arrays = Arrays(path)
    found = arrays.get("kept")
    assert found is None or np.array_equal(found, kept)
    assert isinstance(len(arrays), int)
    assert found is not None or arrays.problem() is not None or "kept" not in list(arrays)
