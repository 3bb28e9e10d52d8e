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


@pytest.fixture
def two_recipes(write_run: Writer, recipe_of: Writer, runs_root: Path) -> Path:
    for name in ("first_tail", "second_tail"):
        for arm in ("baseline", "batchformer"):
            for seed in range(3):
                write_run(arm, seed, recipe=recipe_of(name))
    return runs_root


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


def test_the_page_has_it_only_where_asked(two_recipes: Path) -> None:
    runs = find_runs(two_recipes)
    assert 'id="together"' not in render(runs)
    page = render(runs, pooled=True)
    assert page.count('id="together"') == 1 and page.count("Over all, 6 seeds") == 5
    # Ids of its plots are its own.
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_the_command_prints_it_and_writes_it(
    two_recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    results.report([str(two_recipes), "--to", str(page)])
    assert "Taken together" not in capsys.readouterr().out
    results.report([str(two_recipes), "--to", str(page), "--pooled"])
    said = capsys.readouterr().out
    assert "batchformer - baseline, recipe by recipe" in said and "Taken together" in said
    assert "Taken together" in page.read_text()


def test_one_recipe_cannot_be_taken_together(
    write_run: Writer, runs_root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arm in ("baseline", "batchformer"):
        for seed in range(3):
            write_run(arm, seed)
    results.report([str(runs_root), "--pooled", "--to", str(tmp_path / "page.html")])
    assert "No two recipes have" in " ".join(capsys.readouterr().out.split())
