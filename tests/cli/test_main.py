"""The command line as a person meets it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.cli import main as cli
from helpers.commands import ask

HERE = str(Path(__file__).parent)
LENGTH = ["--train.updates", "4", "--train.eval-every", "2", "--train.no-figures"]
QUICK = [*LENGTH, "--quiet", "--device", "cpu"]

QUESTIONS = [
    *(["--help"], ["list"], ["data"], ["compare", "--help"], ["compare", "demo", "--help"]),
    *(["sweep"], ["sweep", "--help"], ["sweep", "--help-all"], ["show"]),
]
MISTAKES = [
    (["compare", "dmeo"], "Did you mean demo"),
    (["trian", "demo"], "Did you mean `batchformer train`"),
    (["compare", "demo", "--optim.lrr", "1"], "--optim.lr"),
    (["compare", "demo", "--optim.name", "sgdd"], "'sgd', 'adam', 'adamw'"),
    (["compare", "demo", "--optim.lr", "-1"], "optim.lr is -1.0 and must be above 0"),
    (["compare", "demo", "--method", "focl"], "'balanced_softmax', 'ldam'"),
    (["compare", "demo", "--arms", "batchfromer"], "Did you mean batchformer"),
    (["sweep", "demo_layer"], "Did you mean demo_layers"),
    (["sweep", "demo_layers", "--levels", "3"], "its levels are 1, 2, 4"),
    (["train"], "needs the name of a recipe"),
    (["evaluate"], "needs a run folder"),
    (["report", "nowhere"], "There is no folder nowhere"),
    (["show", "influnce", HERE], "Did you mean influence"),
    (["show", "influence"], "needs a run folder"),
    (["show", "influence", HERE, "--measrue", "l2"], "--measure"),
    (
        ["train", "cifar100_lt_balanced_softmax", "--data.root", "/nowhere/x.npz"],
        "CIFAR100 not found: looked in /nowhere/x.npz",
    ),
    # The last, since it loads more to look at runs.
    (["report", HERE, "--against", "batchformer_slef"], "Did you mean batchformer_self"),
]
#: Run first where nothing but torch is installed.
CORE_ALONE = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("torch", "batchformer"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def test_questions_are_answered_at_once_and_without_torch() -> None:
    for question, answer in zip(QUESTIONS, ask(QUESTIONS), strict=True):
        code, said, seconds, torch_is_loaded = answer
        assert (code, torch_is_loaded) == (0, False) and seconds < 2, (question, said)


def test_mistakes_are_answered_at_once_with_what_to_do() -> None:
    found = ask([arguments for arguments, _ in MISTAKES])
    for (arguments, words), (code, said, seconds, torch_is_loaded) in zip(
        MISTAKES, found, strict=True
    ):
        assert code in (1, 2) and "Traceback" not in said and seconds < 3, arguments
        assert words in " ".join(said.replace("│", " ").split()), said
        assert not torch_is_loaded or arguments[0] == "report", arguments


def test_ctrl_c_outside_of_training_is_a_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "report", stopped)
    with pytest.raises(SystemExit) as end:
        cli.main(["report", "."])
    assert end.value.code == 130 and "Stopped at once" in capsys.readouterr().err
    monkeypatch.setenv("BATCHFORMER_TRACEBACK", "1")
    with pytest.raises(KeyboardInterrupt):
        cli.main(["report", "."])


def test_a_device_without_memory_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, failing: Any
) -> None:
    def full(arguments: list[str]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setitem(cli.COMMANDS, "train", full)
    code, words = failing("train", "demo")
    assert code == 1 and "Tried to allocate 2.00 GiB. What was saved" in words
    assert "--train.batch-size" in words and "--together" in words


def test_without_the_extras_a_line_names_them() -> None:
    calls = [["--help"], ["list"], ["demo"], ["compare", "demo"], ["sweep"], ["report", "."]]
    (code, said, *_), *others = ask(calls, before=CORE_ALONE)
    assert code == 0 and "compare RECIPE" in said
    for call, (code, said, *_) in zip(calls[1:], others, strict=True):
        assert code == 1 and "Traceback" not in said, call
        assert "pip install 'batchformer[lab,report]'" in said, call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of three arms with three seeds."""
    root = tmp_path_factory.mktemp("runs")
    arms = ["--arms", "baseline", "batchformer", "batchformer_self"]
    cli.main(["compare", "demo", "--seeds", "3", *arms, "--runs", str(root), *QUICK])
    return root


#: Draws the figures of a page, which take most of its time.
DRAWN = "batchformer.lab.report.page.html.sections_of"


def results_in(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("result.json")}


def test_a_comparison_ends_with_a_table_and_a_page(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results_in(runs)
    assert len(before) == 9
    cli.main(["compare", "demo", "--seeds", "3", "--runs", str(runs), *QUICK])
    assert results_in(runs) == before, "nothing is trained again"
    out = capsys.readouterr().out
    page = runs / "demo/report.html"
    assert f"Page: {page}" in " ".join(out.split()) and page.stat().st_size > 10_000
    for words in ("batchformer - baseline", "95% interval", "This table holds"):
        assert words in out


def test_a_report_is_against_the_baseline_or_the_arm_that_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arms, page = ("batchformer_self", "batchformer"), tmp_path / "page.html"
    monkeypatch.setattr(DRAWN, lambda *_: [])
    report = ["report", *(str(runs / "demo" / arm) for arm in arms), "--to", str(page)]
    for against, difference, said in (
        ([], "batchformer - batchformer_self", "no finished baseline and is compared with"),
        (["--against", "batchformer"], "batchformer_self - batchformer", "compared with"),
        (["--against", "baseline"], "nothing to compare", "demo has no finished baseline"),
    ):
        page.unlink(missing_ok=True)
        cli.main([*report, *against])
        out = " ".join(capsys.readouterr().out.split())
        assert difference in out and said in out and page.exists()


def test_a_sweep_ends_with_a_table_and_a_page_and_can_be_reported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--levels", "1", "2", "--runs", str(tmp_path), *QUICK]
    cli.main(["sweep", "demo_layers", "--seeds", "3", "--together", "3", *options])
    out = " ".join(capsys.readouterr().out.split())
    page = tmp_path / "demo_layers/report.html"
    assert f"Page: {page}" in out and "All by layers" in page.read_text()
    for words in ("All by layers", "All, difference to layers 1", "This sweep holds 3 comparisons"):
        assert words in out, words
    before = results_in(tmp_path)
    assert len(before) == 9
    with monkeypatch.context() as patch:
        patch.setattr(DRAWN, lambda *_: [])
        cli.main(["sweep", "demo_layers", "--seeds", "1", *options])
    again = " ".join(capsys.readouterr().out.split())
    assert results_in(tmp_path) == before, "nothing is trained again"
    cli.main(["report", str(tmp_path), "--to", str(tmp_path / "page.html")])
    reported = " ".join(capsys.readouterr().out.split())
    table = slice(0, out.index("Page:"))
    assert out[table] == again[table] == reported[table]
    assert "Sweep of layers" in (tmp_path / "page.html").read_text()


def test_version_and_empty_call(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"])
    cli.main([])
    out = capsys.readouterr().out
    assert out.startswith("0.1.0") and "compare RECIPE" in out


def test_a_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "BATCHFORMER_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no recipe"):
        cli.main(["train", "zzz"])


def test_a_stream_that_is_closed_or_cannot_encode_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setitem(cli.COMMANDS, "data", lambda _: print("Page: bücher.html"))
    for stream in (None, io.TextIOWrapper(written, "ascii")):
        monkeypatch.setattr(sys, "stdout", stream)
        cli.main(["data"])
    assert written.getvalue() == b"Page: b\\xfccher.html\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m batchformer list | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stdout.startswith("Recipes") and result.stderr == ""


def test_a_warning_of_ours_is_a_line_without_a_place_in_our_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of images that --train.damaged skip leaves out."""
    found: list[str] = []

    def warn(arguments: list[str]) -> None:
        ours, other = str(Path(cli.__file__).parent / "data/loader.py"), "/site/other.py"
        found.append(warnings.formatwarning("a.png: cut", RuntimeWarning, ours, 130))
        found.append(warnings.formatwarning("old", RuntimeWarning, other, 1, "f()"))

    before = warnings.formatwarning
    monkeypatch.setitem(cli.COMMANDS, "data", warn)
    cli.main(["data"])
    assert found[0] == "Warning: a.png: cut\n" and found[1].startswith("/site/other.py:1: ")
    assert warnings.formatwarning is before
