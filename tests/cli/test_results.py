"""Commands on finished runs, also where not all have finished."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from batchformer.cli import results
from batchformer.cli.arguments import UserError
from batchformer.lab.models.build import build_model
from batchformer.lab.runs.compare import runs_of_comparison
from batchformer.lab.runs.folder import RECORD
from helpers.lab_runs import metrics_of, short, train_one
from soak.processes import finish, start


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of a comparison: two finished, one begun, one that waits in a queue."""
    root = tmp_path_factory.mktemp("half")
    runs = runs_of_comparison(short(), ("baseline", "batchformer"), (0, 1), root)
    for one in runs[:2]:
        train_one(one.recipe, one.arm, one.seed, root=root)
    runs[2].begin()
    (runs[2].folder / "metrics.jsonl").touch()
    jobs = {"baseline/seed1": "12_2", "batchformer/seed1": "12_3"}
    record = {key: {"job": job, "folder": str(root / "jobs")} for key, job in jobs.items()}
    (root / "demo" / RECORD).write_text(json.dumps({"jobs": record}))
    return root


def test_a_report_of_half_a_comparison_says_what_is_missing(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    results.report([str(half / "demo"), "--to", str(page)])
    said = " ".join(capsys.readouterr().out.split())
    assert "batchformer - baseline" in said and f"Page: {page}" in said
    assert "Not included: demo/baseline/seed1 has not finished: last record at update 0" in said
    waiting = half / "demo/batchformer/seed1"
    assert f"Not included: {waiting} (job 12_3) has not begun." in said
    assert "12_2" not in said, "it has begun, and is named as unfinished"


def test_whoever_reads_only_the_first_lines_has_the_page(half: Path, tmp_path: Path) -> None:
    page, pipe = tmp_path / "read.html", tmp_path / "pipe"
    os.mkfifo(pipe)
    reporting = start(["report", str(half), "--to", str(page)], pipe)
    with pipe.open() as said:
        assert said.readline()
    finish(reporting)
    assert page.read_text().endswith("</html>")


def test_where_the_page_cannot_be_written_the_tables_are(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError):
        results.report([str(half), "--to", str(tmp_path)])
    assert "Each arm" in capsys.readouterr().out


def test_a_report_of_nothing_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"jobs": {"baseline/seed0": {"job": "7", "folder": "jobs"}}}
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / RECORD).write_text(json.dumps(record))
    results.report([str(tmp_path), "--to", str(tmp_path / "page.html")])
    said = " ".join(capsys.readouterr().out.split())
    assert "no comparison" in said and "demo/baseline/seed0 (job 7) has not begun" in said


def test_a_report_of_a_folder_without_runs_says_where_runs_lie(half: Path, tmp_path: Path) -> None:
    """A page of nothing would replace one of something."""
    shutil.copytree(half / "demo/baseline/seed0", tmp_path / "demo/baseline/first")
    page = tmp_path / "page.html"
    with pytest.raises(UserError, match=r"RECIPE/ARM/seedK; a folder with another name"):
        results.report([str(tmp_path), "--to", str(page)])
    assert not page.exists()


def test_evaluate_scores_a_run_again(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = half / "demo/batchformer/seed0"
    results.evaluate([str(folder), "--device", "cpu"])
    assert f"{folder}: all {metrics_of(folder)['all']:.2f}" in capsys.readouterr().out


def test_records_are_counted(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, said in (("demo/baseline", "1 record written."), ("demo", "1 record written, 1 w")):
        results.record([str(half / folder), "--to", str(tmp_path)])
        assert said in capsys.readouterr().out


def test_export_writes_the_plain_network(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = half / "demo/batchformer/seed0", tmp_path / "plain.pt"
    results.export([str(folder), "--to", str(file)])
    assert f"{file}: the weights of digits_net" in capsys.readouterr().out
    build_model("digits_net", 10).load_state_dict(torch.load(file, weights_only=True), strict=True)
    with pytest.raises(UserError, match="one run folder"):
        results.export([str(folder), str(folder), "--to", str(file)])
    with pytest.raises(UserError, match=r"is a folder.*such as .*plain\.pt"):
        results.export([str(folder), "--to", str(tmp_path)])
