from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchformer.cli import results
from batchformer.lab.report.page.html import render
from helpers.run_folders import RunTree, recipe_of


@pytest.fixture(scope="module")
def two_recipes(tmp_path_factory: pytest.TempPathFactory) -> RunTree:
    tree = RunTree(tmp_path_factory.mktemp("pooled"))
    for name in ("first_tail", "second_tail"):
        tree.write_pairs(3, recipe=recipe_of(name))
    return tree


def test_every_metric_has_its_row_and_its_plot(two_recipes: RunTree, no_figures: None) -> None:
    page = render(two_recipes.runs(), pooled=True)
    part = page[page.index('id="pooled"') : page.index('id="recipe-1"')]
    plots = re.findall(r"<h3>(.*?): batchformer − baseline</h3>", part)
    assert plots == ["All", "Many", "Medium", "Few", "ECE"]
    assert part.count("Over all, 6 seeds") == 5
    assert "batchformer, 2 recipes, 6 paired seeds." in part
    assert part.count("<tr>") == 6
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids)) and ids.count("pooled") == 1


def test_the_command_prints_it_and_writes_it_only_if_asked(
    two_recipes: RunTree, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_figures: None
) -> None:
    page, root = tmp_path / "page.html", two_recipes.root
    results.report([str(root), "--to", str(page)])
    assert "Pooled over recipes" not in capsys.readouterr().out + page.read_text()
    drawn: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "batchformer.lab.report.page.html.pooled_parts", lambda found: drawn.append(found) or []
        )
        results.report([str(root), "--to", str(page), "--pooled"])
    said = capsys.readouterr().out
    assert "batchformer - baseline, recipe by recipe" in said and "Pooled over recipes" in said
    assert len(drawn) == 1, "the page has them, too"
    results.report([str(root / "first_tail"), "--pooled", "--to", str(page)])
    assert "No two recipes have" in " ".join(capsys.readouterr().out.split())
    assert "No two recipes have" in page.read_text()
