"""The examples of CONTRIBUTING.md, done: their code is copied into a package and run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import fork, script, wait_for

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
METHODS, SMALL, CATALOGUE = (
    f"src/batchformer/lab/{name}.py"
    for name in ("config/methods", "recipes/small", "report/figures/catalogue")
)
#: Files that have a line added, and before what.
INTO = {
    METHODS: "}\n\n# The names of METHODS",
    SMALL: "#: In the order of",
    CATALOGUE: '    "choice": ',
}
#: What tests ask of all methods, recipes and figures.
ASKED = [
    *("test_docs.py", "cli/test_help.py", "cli/test_options.py", "lab/config"),
    *("lab/recipes/test_settings.py", "lab/recipes/test_protocols.py", "lab/runs/test_listing.py"),
    *(f"lab/report/{name}.py" for name in ("figures/test_catalogue", "figures/test_show")),
    "lab/report/page/test_sections.py",
]


def blocks(text: str = PAGE) -> dict[str, str]:
    """The code of the page, or of a part of it, by the file that it belongs to."""
    return dict(re.findall(r"^`(\S+\.py)`:\n\n```python\n(.*?)```", text, re.S | re.M))


def put(path: Path, before: str, added: str) -> None:
    """Insert code before a line that the file has once."""
    source = path.read_text()
    assert source.count(before) == 1, f"{path.name} has no single line {before!r}"
    path.write_text(source.replace(before, f"{added}{before}"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the examples."""
    root = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for path in (*ROOT.glob("*.md"), *(ROOT / n for n in ("pyproject.toml", "docs", "results"))):
        (root / path.name).symlink_to(path)
    for name, code in blocks().items():
        path = root / name
        if name in INTO:
            put(path, INTO[name], f"{code}\n\n" if name == SMALL else code)
        else:
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
    put(root / SMALL, "    my_folder,\n", "    demo_focal,\n")
    return root


def run(package: Path, *command: str) -> str:
    """What a Python of the copy prints."""
    env = {**os.environ, "PYTHONPATH": str(package / "src")}
    done = subprocess.run(
        [sys.executable, *command], cwd=package, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("what", "into"), [("method", [METHODS, SMALL]), ("figure", [CATALOGUE])])
def test_a_method_takes_four_files_and_a_figure_three(what: str, into: list[str]) -> None:
    first, *others, last = blocks(PAGE.split(f"\n## Adding a {what}\n")[1].split("\n## ")[0])
    assert first.startswith("src/") and others == into and last.startswith("tests/")


#: Begins with the copy: the process may have loaded the package already.
TRIED = """
import contextlib, sys
for name in [n for n in sys.modules if n.partition(".")[0] in ("batchformer", "helpers")]:
    del sys.modules[name]
sys.path.insert(0, "src")
import pytest
from batchformer.cli import main as cli
root, *tests = sys.argv[1:]
assert cli.__file__.startswith(root)
with contextlib.redirect_stdout(sys.stderr):
    assert pytest.main([*tests, "-p", "no:cacheprovider", "-k", "not links"]) == 0
length = ["--train.updates", "2", "--train.eval-every", "0", "--train.no-figures"]
quick = [*length, "--quiet", "--device", "cpu"]
cli.main(["compare", "demo_focal", "--seeds", "1", *quick])
cli.main(["train", "demo", "--method", "focal", *quick])
cli.main(["show", "speed", "runs/demo_focal"])
"""


def test_tests_pass_and_the_command_line_trains_and_draws_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    (package / "tried.py").write_text(TRIED)
    own = [name for name in blocks() if name.startswith("tests/")]
    tests = [*own, *(f"tests/{name}" for name in ASKED)]
    wait_for(
        [fork(script, package / "tried.py", package / "tried", str(package), *tests)],
        [package / "tried"],
    )
    out = (package / "tried.out").read_text()
    assert "demo_focal/report.html" in out and "Speed: Samples a second by update" in out
    assert len(list(package.glob("runs/*/*/seed0/result.json"))) == 3


@pytest.mark.slow
def test_what_the_page_says_to_run_passes(package: Path) -> None:
    commands = re.findall(r"^\.venv/bin/python (-m pytest tests/lab.*)$", PAGE, re.M)
    assert len(commands) == 2
    for command in commands:
        run(package, *shlex.split(command), "-p", "no:cacheprovider", "-m", "not slow and not gpu")


@pytest.mark.slow
def test_it_passes_the_type_checker_and_the_linter(package: Path) -> None:
    changed = list(blocks())
    run(package, "-m", "ruff", "check", *changed)
    run(package, "-m", "ruff", "format", "--check", *changed)
    run(package, "-m", "mypy", *(name for name in changed if name.startswith("src/")))
