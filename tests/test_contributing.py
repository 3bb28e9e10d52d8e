"""The example of CONTRIBUTING.md, done: its code is copied into a package and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import fork, script, wait_for

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
METHODS, SMALL = (f"src/batchformer/lab/{name}.py" for name in ("config/methods", "recipes/small"))


def blocks() -> dict[str, str]:
    """The code of the page by the file that it belongs to."""
    return dict(re.findall(r"^`(\S+\.py)`:\n\n```python\n(.*?)```", PAGE.read_text(), re.S | re.M))


def put(path: Path, before: str, added: str) -> None:
    """Insert code before a line that the file has once."""
    source = path.read_text()
    assert source.count(before) == 1, f"{path.name} has no single line {before!r}"
    path.write_text(source.replace(before, f"{added}{before}"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the example's four files."""
    root = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for name in ("pyproject.toml", "docs", "results"):
        (root / name).symlink_to(ROOT / name)
    for name, code in blocks().items():
        path = root / name
        if name == METHODS:
            put(path, "}\n\n# The names of METHODS", code)
        elif name == SMALL:
            put(path, "#: In the order of", f"{code}\n\n")
            put(path, "    my_folder,\n", "    demo_focal,\n")
        else:
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
    return root


def run(package: Path, *command: str) -> str:
    """What a Python of the copy prints."""
    env = {**os.environ, "PYTHONPATH": str(package / "src")}
    done = subprocess.run(
        [sys.executable, *command], cwd=package, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_method_takes_four_files() -> None:
    names = list(blocks())
    assert len(names) == 4 and names[1:3] == [METHODS, SMALL]
    assert [name.split("/")[0] for name in names] == ["src", "src", "src", "tests"]


#: Begins with the copy: the process may have loaded the package already.
TRIED = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "batchformer"]:
    del sys.modules[name]
sys.path.insert(0, "src")
import pytest
from batchformer.cli import main as cli
assert cli.__file__.startswith(sys.argv[1])
assert pytest.main(["tests/lab/methods/test_focal.py", "-p", "no:cacheprovider"]) == 0
length = ["--train.updates", "2", "--train.eval-every", "0", "--train.no-figures"]
quick = [*length, "--quiet", "--device", "cpu"]
cli.main(["compare", "demo_focal", "--seeds", "1", *quick])
cli.main(["train", "demo", "--method", "focal", *quick])
"""


def test_its_tests_pass_and_the_command_line_trains_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    (package / "tried.py").write_text(TRIED)
    wait_for(
        [fork(script, package / "tried.py", package / "tried", str(package))], [package / "tried"]
    )
    out = (package / "tried.out").read_text()
    assert "2 passed" in out and "demo_focal/report.html" in out
    assert len(list(package.glob("runs/*/*/seed0/result.json"))) == 3


def test_no_other_file_has_to_change(package: Path) -> None:
    # What the tests ask of all methods and recipes.
    tests = ("test_docs.py", "lab/config/test_recipe.py", "lab/recipes/test_settings.py")
    paths = [f"tests/{name}" for name in tests]
    run(package, "-m", "pytest", "-p", "no:cacheprovider", "-k", "not links", *paths)


@pytest.mark.slow
def test_it_passes_the_type_checker_and_the_linter(package: Path) -> None:
    changed = list(blocks())
    run(package, "-m", "ruff", "check", *changed)
    run(package, "-m", "ruff", "format", "--check", *changed)
    run(package, "-m", "mypy", *changed[:3])
