from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchformer.cli import results
from batchformer.lab.report.page.html import render
from batchformer.lab.report.page.pooled_page import pooled_part
from batchformer.lab.report.results.comparison import compare_runs
from batchformer.lab.report.results.pooling import pool_recipes
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


@pytest.fixture(scope="module")
def two_recipes(
    make_run: Writer, make_recipe: Writer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    root = tmp_path_factory.mktemp("pooled")
    for name in ("first_tail", "second_tail"):
        for arm in ("baseline", "batchformer"):
            for seed in range(3):
                make_run(root, arm, seed, recipe=make_recipe(name))
    return root


def test_every_metric_has_its_plot(two_recipes: Path) -> None:
    comparison = compare_runs(find_runs(two_recipes))
    part = pooled_part(pool_recipes(comparison))
    (pair,) = part.parts
    assert [section.title.partition(":")[0] for section in pair.sections] == [
        "All",
        "Many",
        "Medium",
        "Few",
        "ECE",
    ]
    assert pair.headline.startswith("batchformer, 2 recipes, 6 paired seeds.")
    assert pair.table.count("<tr>") == 6


def test_the_page_has_it_with_ids_of_its_own(two_recipes: Path) -> None:
    page = render(find_runs(two_recipes), pooled=True)
    assert page.count('id="pooled"') == 1 and page.count("Over all, 6 seeds") == 5
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_the_command_prints_it_and_writes_it_only_if_asked(
    two_recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_figures: None
) -> None:
    page = tmp_path / "page.html"
    results.report([str(two_recipes), "--to", str(page)])
    assert "Pooled over recipes" not in capsys.readouterr().out + page.read_text()
    results.report([str(two_recipes), "--to", str(page), "--pooled"])
    said = capsys.readouterr().out
    assert "batchformer - baseline, recipe by recipe" in said and "Pooled over recipes" in said
    assert "Pooled over recipes" in page.read_text()


def test_one_recipe_cannot_be_taken_together(
    two_recipes: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, no_figures: None
) -> None:
    one = str(two_recipes / "first_tail")
    results.report([one, "--pooled", "--to", str(tmp_path / "page.html")])
    assert "No two recipes have" in " ".join(capsys.readouterr().out.split())
