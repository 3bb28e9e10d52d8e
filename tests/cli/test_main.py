"""The command line as a person meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.models.build import build_model

HERE = str(Path(__file__).parent)
QUICK = ["--train.updates", "12", "--train.eval-every", "6", "--quiet", "--device", "cpu"]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchformer", *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["data"],
        ["compare", "--help"],
        ["sweep"],
        ["sweep", "--help"],
        ["show"],
    ],
)
def test_questions_are_answered_at_once_and_without_torch(arguments: list[str]) -> None:
    started = time.perf_counter()
    result = call(*arguments)
    assert result.returncode == 0 and time.perf_counter() - started < 2
    code = f"import sys; from batchformer.cli.main import main\ntry: main({arguments})\n"
    code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "dmeo"], "Did you mean demo"),
        (["trian", "demo"], "Did you mean `batchformer train`"),
        (["compare", "demo", "--optim.lrr", "1"], "--optim.lr"),
        (["compare", "demo", "--optim.name", "sgdd"], "'sgd', 'adam', 'adamw'"),
        (["compare", "demo", "--optim.lr", "-1"], "optim.lr is -1.0 and must be above 0"),
        (["compare", "demo", "--module.dropout", "2"], "outside [0, 1)"),
        (["compare", "demo", "--arms", "batchfromer"], "Did you mean batchformer"),
        (["compare", "demo", "--seeds", "0"], "at least one seed"),
        (["sweep", "demo_layer"], "Did you mean demo_layers"),
        (["sweep", "demo_layers", "--levels", "3"], "its levels are 1, 2, 4"),
        (["sweep", "demo_layers", "--arms", "batchfromer"], "Did you mean batchformer"),
        (["sweep", "demo_layers", "--seeds", "0"], "at least one seed"),
        (["sweep", "demo_layers", "--optim.lrr", "1"], "--optim.lr"),
        (["train"], "needs the name of a recipe"),
        (["evaluate"], "needs a run folder"),
        (["report", "nowhere"], "There is no folder nowhere"),
        (["show", "influnce", HERE], "Did you mean influence"),
        (["show", "influence"], "needs a run folder"),
        (["show", "influence", HERE, "--measrue", "l2"], "--measure"),
        (["report", HERE, "--against", "batchformer_slef"], "Did you mean batchformer_self"),
        (
            ["train", "cifar100_lt_balanced_softmax", "--data.root", "/nowhere/x.npz"],
            "CIFAR100 not found: looked in /nowhere/x.npz",
        ),
    ],
)
def test_mistakes_are_answered_with_what_to_do_within_three_seconds(
    arguments: list[str], words: str
) -> None:
    started = time.perf_counter()
    result = call(*arguments)
    assert time.perf_counter() - started < 3
    assert result.returncode in (1, 2) and "Traceback" not in result.stderr
    assert words in " ".join((result.stderr + result.stdout).replace("│", " ").split())


def test_a_comparison_ends_with_a_table_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", "demo", "--seeds", "3", "--runs", str(tmp_path), *QUICK]
    cli.main(arguments)
    out = capsys.readouterr().out
    page = tmp_path / "demo/report.html"
    assert f"Page: {page}" in " ".join(out.split()) and page.stat().st_size > 10_000
    for words in ("batchformer - baseline", "95% interval", "This table holds"):
        assert words in out
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")}
    assert len(before) == 6
    cli.main(arguments)  # nothing is trained again
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")} == before


def test_a_sweep_ends_with_a_table_and_a_page_and_can_be_reported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--levels", "1", "2", "--runs", str(tmp_path), *QUICK]
    cli.main(["sweep", "demo_layers", "--seeds", "3", "--together", "3", *options])
    out = " ".join(capsys.readouterr().out.split())
    page = tmp_path / "demo_layers/report.html"
    assert f"Page: {page}" in out and "All by layers" in page.read_text()
    for words in ("All by layers", "All, difference to layers 1", "This sweep holds 3 comparisons"):
        assert words in out, words
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")}
    assert len(before) == 9
    cli.main(["sweep", "demo_layers", "--seeds", "1", *options])  # nothing is trained again
    again = " ".join(capsys.readouterr().out.split())
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")} == before
    cli.main(["report", str(tmp_path), "--to", str(tmp_path / "page.html")])
    reported = " ".join(capsys.readouterr().out.split())
    table = slice(0, out.index("Page:"))
    assert out[table] == again[table] == reported[table]
    assert "Sweep of layers" in (tmp_path / "page.html").read_text()


def test_the_first_arm_is_the_one_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ["--arms", "batchformer_self", "batchformer"]
    cli.main(["compare", "demo", "--seeds", "3", "--runs", str(tmp_path), *arms, *QUICK])
    out = " ".join(capsys.readouterr().out.split())
    assert "batchformer - batchformer_self" in out
    assert "This table holds 5 comparisons" in out
    assert re.search(r"batchformer compared with batchformer_self(:| is| differs)", out)
    assert "nothing to compare" not in out and "baseline" not in out
    assert "to batchformer_<wbr>self, same seeds" in (tmp_path / "demo/report.html").read_text()

    page = tmp_path / "page.html"
    report = ["report", str(tmp_path), "--to", str(page)]
    for against, difference, said in (
        ([], "batchformer - batchformer_self", "no finished baseline and is compared with"),
        (["--against", "batchformer"], "batchformer_self - batchformer", "compared with"),
        (["--against", "baseline"], "nothing to compare", "demo has no finished baseline"),
    ):
        page.unlink(missing_ok=True)
        cli.main([*report, *against])
        out = " ".join(capsys.readouterr().out.split())
        assert difference in out and said in out and page.exists()


def test_two_seeds_are_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["compare", "demo", "--seeds", "2", "--runs", str(tmp_path), *QUICK])
    out = capsys.readouterr().out
    assert "too few seeds" in out and "inside the noise" not in out


def test_train_evaluate_export_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["train", "demo", "--seed", "3", "--runs", str(tmp_path), *QUICK])
    folder = tmp_path / "demo/batchformer/seed3"
    assert f"Finished: {folder}" in capsys.readouterr().out
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    cli.main(["evaluate", str(folder), "--device", "cpu"])
    assert f"all {metrics['all']:.2f}" in capsys.readouterr().out

    weights = tmp_path / "plain.pt"
    cli.main(["export", str(folder), "--to", str(weights)])
    state = torch.load(weights, weights_only=True)
    build_model("digits_net", 10).load_state_dict(state, strict=True)

    cli.main(["report", str(tmp_path), "--to", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").exists()


def test_version_and_empty_call(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"])
    cli.main([])
    out = capsys.readouterr().out
    assert out.startswith("0.1.0") and "compare RECIPE" in out


def test_a_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "BATCHFORMER_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no recipe"):
        cli.main(["train", "zzz"])


CORE_ALONE = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("torch", "batchformer"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from batchformer.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "arguments", [["list"], ["demo"], ["compare", "demo"], ["sweep"], ["report", "."]]
)
def test_without_the_extras_a_line_names_them(arguments: list[str]) -> None:
    help_text = subprocess.run(
        [sys.executable, "-c", CORE_ALONE, "--help"], capture_output=True, text=True
    )
    assert help_text.returncode == 0 and "compare RECIPE" in help_text.stdout
    result = subprocess.run(
        [sys.executable, "-c", CORE_ALONE, *arguments], capture_output=True, text=True
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "pip install 'batchformer[lab,report]'" in result.stderr


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
