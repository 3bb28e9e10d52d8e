"""Commands that train: what they refuse, what they report and how they end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from batchformer.cli import training
from batchformer.cli.arguments import UserError
from batchformer.cli.main import main
from batchformer.lab.runs import launch
from batchformer.lab.runs.run import Run
from helpers.commands import ask
from soak.processes import finish as ended
from soak.processes import start

QUICK = ["--train.updates", "2", "--train.eval-every", "2", "--train.no-figures"]
QUICK += ["--quiet", "--device", "cpu"]
#: Draws the figures of a page, which take most of its time.
DRAWN = "batchformer.lab.report.page.html.sections_of"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each report would be of."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(training, "print_report", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("compare", ["--seeds", "5-3"], "ends before it begins"),
        ("compare", ["--seeds", "1,0-2"], "names a seed twice"),
        ("compare", ["--seeds", "all"], "such as 100-119"),
        ("compare", ["--together", "0"], "one run at a time"),
        ("compare", ["--arms"], "one arm"),
        ("compare", ["--arms", "baseline", "batchformer", "baseline"], "--arms names baseline twi"),
        ("sweep", ["--levels", "2", "2"], "--levels names 2 twice"),
        ("compare", ["--wait"], "--wait is for --launcher slurm"),
        ("compare", ["--wait", "--launcher", "local"], "the command waits anyway"),
        ("compare", ["--together", "2", "--launcher", "slurm"], r"is --jobs\.at-once"),
        ("sweep", ["--together", "2", "--launcher", "local"], r"is --jobs\.at-once"),
        ("compare", ["--jobs.at-once", "2"], "is for --launcher local or slurm"),
        ("sweep", ["--train.epochs", "3", "--train.updates", "9"], r"Set --train\.epochs 0"),
        ("sweep", ["--module.layers", "2"], r"--module\.layers: level 1 of demo_layers sets this"),
        ("sweep", ["--hyper.tau", "2"], r"--hyper\.tau: no effect with --method balanced_softmax"),
        ("train", ["--arm", "baselin"], "Did you mean baseline"),
        ("train", ["--seed", "-1"], "seeds count from 0"),
    ],
)
def test_what_makes_no_sense_is_refused(command: str, arguments: list[str], words: str) -> None:
    name = "demo_layers" if command == "sweep" else "demo"
    with pytest.raises(UserError, match=words):
        getattr(training, command)([name, *arguments])


def test_a_demonstration_without_seeds_is_refused_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UserError, match="at least one seed is needed"):
        training.demo(["--seeds", "0"])
    assert capsys.readouterr().out == "", "before the check, which takes seconds"


def test_ranks_do_not_submit_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="call it without torchrun"):
        training.compare(["demo", "--launcher", "slurm"])


def test_a_comparison_is_reported_against_its_first_arm(
    tmp_path: Path, reported: list[tuple[Any, ...]]
) -> None:
    arms = ["--arms", "batchformer_self", "baseline"]
    page = ["--page", str(tmp_path / "mine.html")]
    training.compare(["demo", "--seeds", "7-7", *arms, *page, "--runs", str(tmp_path), *QUICK])
    folders = [tmp_path / f"demo/{arm}/seed7" for arm in arms[1:]]
    assert reported == [(folders, tmp_path / "mine.html", "demo", "batchformer_self")]


@pytest.mark.parametrize("first", ["baseline", "batchformer_self"])
def test_a_page_of_fewer_arms_says_how_to_get_one_of_all(
    first: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DRAWN, lambda *_: [])
    options = ["--runs", str(tmp_path / "my runs"), *QUICK]
    arms = [first, "batchformer", "batchformer_frozen"]
    page = tmp_path / "my runs/demo/report.html"
    training.compare(["demo", "--seeds", "2", "--arms", *arms, *options])
    assert "Not on this page" not in capsys.readouterr().out
    training.compare(["demo", "--seeds", "1", "--arms", *arms[:2], *options])
    assert "batchformer_frozen" not in page.read_text()
    said, _, command = capsys.readouterr().out.splitlines()[-1].partition(". A page of all: ")
    assert said == f"Not on this page: 4 other finished runs of {', '.join(sorted(arms))}"
    program, *arguments = shlex.split(command)
    assert program == "batchformer"
    main(arguments)
    assert f"batchformer_frozen - {first}" in capsys.readouterr().out, "the same reference"
    assert "<strong>batchformer_frozen</strong>" in page.read_text()


DIVERGING = ["--seeds", "1", *QUICK, "--module.lr-factor", "1e30"]


@pytest.mark.parametrize(
    "command", [["compare", "demo"], ["sweep", "demo_layers", "--levels", "1"]]
)
def test_runs_that_diverged_are_named_beside_the_table_on_the_page_and_at_the_end(
    command: list[str],
    tmp_path: Path,
    failing: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mean over the seeds that are left flatters an arm."""
    monkeypatch.setattr(DRAWN, lambda *_: [])
    options = [*command, *DIVERGING, "--runs", str(tmp_path)]
    code, said = failing(*options)
    recipe = "demo" if command[0] == "compare" else "demo_layers/1"
    missing = f"{recipe}/batchformer/seed0 has not finished"
    assert code == 1 and f"1 of 2 runs diverged: {recipe} batchformer seed 0. Finished" in said
    assert missing in said and missing in (tmp_path / command[1] / "report.html").read_text()
    (finished,) = tmp_path.rglob("result.json")
    written = finished.stat().st_mtime_ns
    main([*options, "--arms", "baseline"])  # it ends well: the other run is none of its own
    assert finished.stat().st_mtime_ns == written


def in_a_pipe() -> None:
    """Write what is printed when the buffer is full, not at once; and draw no figures."""
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    patch(DRAWN, lambda *_: []).start()


def test_a_script_sees_that_a_run_diverged(tmp_path: Path) -> None:
    command, output = ["compare", "demo", *DIVERGING, "--runs", str(tmp_path)], tmp_path / "out"
    assert ended(start(command, output, in_a_pipe)) == 1
    first, *_, page, last = output.read_text().splitlines()
    assert page.startswith("Page: ")
    assert first.startswith("demo batchformer seed 0: The 'loss' part of the loss became")
    assert last.startswith("batchformer: 1 of 2 runs diverged: demo batchformer seed 0.")


def test_train_ends_with_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, arm in ([], "batchformer"), (["--arm", "baseline"], "baseline"):
        training.train(["demo", *given, "--seed", "2", "--runs", str(tmp_path), *QUICK])
        assert capsys.readouterr().out == f"Finished: {tmp_path / f'demo/{arm}/seed2'}\n"


def test_one_training_that_diverges_ends_with_the_reason(
    tmp_path: Path, failing: Callable[..., tuple[int, str]]
) -> None:
    code, said = failing("train", "demo", *DIVERGING[2:], "--runs", str(tmp_path))
    assert code == 1 and "The 'loss' part of the loss became" in said and "optim.lr" in said
    assert not list(tmp_path.rglob("result.json"))


def finish(run: Run) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "result.json").write_text(json.dumps({"metrics": {"all": 1.0}}))


def test_local_jobs_are_reported_and_what_is_missing_ends_with_an_error(
    tmp_path: Path, reported: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[launch.Launch] = []

    def train_one(how: launch.Launch, runs: list[Run]) -> list[Any]:
        given.append(how)
        finish(runs[0])
        return []

    monkeypatch.setattr(launch, "train_locally", train_one)
    jobs = ["--launcher", "local", "--jobs.at-once", "3", "--runs", str(tmp_path)]
    with pytest.raises(UserError, match="1 of 2 runs have not finished: demo batchformer seed 0"):
        training.compare(["demo", "--seeds", "1", *jobs, *QUICK])
    assert [folders for folders, *_ in reported] == [[tmp_path / "demo/baseline/seed0"]]
    how = given[0]
    assert (how.launcher, how.config.at_once, how.root) == ("local", 3, tmp_path)
    assert (how.name, how.device, how.quiet) == ("demo", "cpu", True)
    assert how.folder == tmp_path / "demo/jobs"


def test_a_job_that_diverged_is_not_left_to_be_repeated(
    tmp_path: Path, failing: Callable[..., tuple[int, str]]
) -> None:
    jobs = ["--launcher", "local", "--runs", str(tmp_path), "--arms", "batchformer"]
    code, said = failing("compare", "demo", *DIVERGING, *jobs)
    assert code == 1 and "1 of 1 runs diverged: demo batchformer seed 0." in said
    assert "Repeating the command gives the same" in said and "--optim.lr" in said
    assert "have not finished" not in said and "Repeat the command" not in said


@pytest.mark.parametrize("wait", [False, True])
def test_slurm_returns_unless_it_is_to_wait(
    wait: bool, tmp_path: Path, reported: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[str] = []
    monkeypatch.setattr(training, "ensure_launcher", lambda launcher: None)

    def submit(how: launch.Launch, runs: list[Run]) -> list[tuple[Run, Any]]:
        submitted.extend(run.title for run in runs)
        job = SimpleNamespace(paths=SimpleNamespace(stderr=tmp_path / "job.err"))
        return [(run, job) for run in runs]

    def wait_for(jobs: list[tuple[Run, Any]], quiet: bool) -> None:
        for run, _ in jobs:
            finish(run)

    monkeypatch.setattr(launch, "submit", submit)
    monkeypatch.setattr(launch, "wait_for", wait_for)
    options = ["--levels", "1", "2", "--seeds", "1", "--runs", str(tmp_path), *QUICK]
    training.sweep(["demo_layers", *options, "--launcher", "slurm", *["--wait"] * wait])
    cells = ("1 baseline", "1 batchformer", "2 batchformer")
    assert submitted == [f"demo_layers/{cell} seed 0" for cell in cells]
    folder = tmp_path / "demo_layers"
    assert reported == [([folder], folder / "report.html", "demo_layers")] * wait
    assert (folder / "sweep.json").exists()


def test_all_options_are_behind_help_all_without_torch_and_submitit() -> None:
    missing = "import sys; sys.modules['submitit'] = None\n"
    (answer,) = ask([["compare", "demo", "--help-all"]], before=missing)
    assert answer.code == 0 and not answer.torch_is_loaded
    for option in (
        *("--launcher {none,local,slurm}", "--jobs.partition", "--jobs.extra", "--wait"),
        *("--data.root", "--hyper.margin", "--optim.betas", "--seeds"),
    ):
        assert option in answer.said, option


@pytest.mark.parametrize(
    ("launcher", "before", "words"),
    [
        (
            "local",
            "import sys; sys.modules['submitit'] = None\n",
            "--launcher local needs submitit: pip install 'batchformer[cluster]'\n",
        ),
        (
            "slurm",
            "import os; os.environ['PATH'] = ''\n",
            "--launcher slurm: there is no sbatch and no srun here.",
        ),
    ],
)
def test_a_launcher_that_is_not_there_is_named_at_once(
    launcher: str, before: str, words: str
) -> None:
    commands = [["compare", "demo"], ["sweep", "demo_layers"]]
    for answer in ask([[*own, "--launcher", launcher] for own in commands], before=before):
        assert answer.said.startswith(f"batchformer: {words}") and not answer.torch_is_loaded


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_the_demo_proves_says_a_line_a_run_and_what_comes_next(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reported: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
    quiet: list[str],
) -> None:
    demo = training.find_recipe("demo")
    short = demo.changed(train={"updates": 4, "eval_every": 1})
    monkeypatch.setattr(training, "find_recipe", lambda name: short)
    # As after `make demo`: an environment whose commands are not on the path.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/activate").touch()
    monkeypatch.setattr(training.sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr(training.shutil, "which", lambda name: None)
    training.demo(["--seeds", "1", "--runs", str(tmp_path), *quiet])
    seen = capsys.readouterr()
    lines = (seen.out + seen.err).splitlines()
    begins = [line.partition(" updates, all ")[0] for line in lines if " updates, all " in line]
    assert begins == ([] if quiet else ["demo baseline seed0: 4", "demo batchformer seed0: 4"])
    # It begins with the proof and ends with what to do next.
    if quiet:
        assert not lines
    else:
        assert "BatchFormer is acting." in lines
        assert f"To call batchformer from your shell: source {tmp_path / 'bin/activate'}" in lines
        command, options = "compare my_folder", "--weights timm --optim.lr 0.005 --seeds 5"
        assert lines[-2] == f"  batchformer {command} --data.root photos {options}"
    assert len(reported) == 1
