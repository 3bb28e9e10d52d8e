"""The pages say what the program says: excerpts of its output, its methods, its arms, its links."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from pathlib import Path

import pytest

from batchformer.cli.arguments import refuse_unknown_arms, with_recipe
from batchformer.cli.main import main
from batchformer.cli.options import CheckOptions, CompareOptions, TrainOptions
from batchformer.lab.config.arms import ARMS
from batchformer.lab.config.methods import METHODS
from batchformer.lab.recipes import find_recipe
from helpers.lab_runs import RESULTS, published_recipes

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LABORATORY = (ROOT / "docs/laboratory.md").read_text()


def first_cells(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of the laboratory's page."""
    section = LABORATORY.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_methods_and_arms_with_published_numbers_are_explained() -> None:
    in_other_rows = {"ride_assignment"}  # with ride
    methods = {find_recipe(name).method for name in published_recipes()} - in_other_rows
    arms = {path.parent.name for path in RESULTS.rglob("seed*.json")}
    assert methods <= first_cells("Methods") <= set(METHODS)
    assert arms <= first_cells("Arms") <= set(ARMS)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["--help"], "batchformer COMMAND"),
        (["compare", "demo", "--help"], "Usage: batchformer compare demo"),
        (["list"], "Recipes (paper"),
    ],
)
def test_excerpts_of_output_are_what_is_printed(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.delenv("BATCHFORMER_DATA", raising=False)
        with contextlib.suppress(SystemExit):  # --help leaves by it
            main(command)
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    (block,) = [b for b in re.findall(r"```text\n(.*?)```", LABORATORY, re.S) if words in b[:60]]
    lines = [line.strip() for line in block.splitlines()]
    missing = [line for line in lines if line not in {*printed, "..."} and "absent" not in line]
    assert not [line for line in missing if f"Usage: {line}" not in printed]


COMMANDS = {"train": TrainOptions, "compare": CompareOptions, "check": CheckOptions}


def test_commands_have_recipes_arms_and_options_that_exist() -> None:
    read = 0
    for page in PAGES:
        blocks = re.findall(r"```(?:bash|text)\n(.*?)```", page.read_text(), re.S)
        lines = "\n".join(blocks).replace("\\\n", " ")
        for name, rest in re.findall(r"batchformer (train|compare|check) ([a-z].*)", lines):
            given = re.sub(r"( #| &&| \().*", "", rest)
            if re.search(r"[$\[]|\.\.\.|ARM|--help|demo_focal", given):
                continue  # a part of a command, or the recipe that CONTRIBUTING.md adds
            _, options = with_recipe(COMMANDS[name], shlex.split(given), name)
            refuse_unknown_arms(getattr(options, "arms", None) or ())
            read += 1
    assert read > 50


def test_the_tables_of_check_are_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/six-lines.md").read_text()
    blocks = re.findall(r"```(python|text)\n(.*?)```", page, re.S)
    for (kind, code), (following, text) in itertools.pairwise(blocks):
        if (kind, following) == ("python", "text"):
            exec(compile(code, "page", "exec"), {"__name__": "page"})
            assert capsys.readouterr().out.strip() == text.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", other.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, f"{page.name}: {target} has no such heading"
