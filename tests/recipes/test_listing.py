"""What there is to run, as it is shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from batchformer.recipes import RECIPES, find_recipe
from batchformer.recipes.arms import ARMS
from batchformer.recipes.data_state import data_state, ensure_data
from batchformer.recipes.listing import paper_numbers, print_data, print_listing
from batchformer.recipes.paper import ROWS

TABLES = ("T1", "T2", "T3", "T4")


def shown(width: int, printer: object = print_listing) -> str:
    stream = io.StringIO()
    printer(Console(file=stream, width=width))  # type: ignore[operator]
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_everything_is_listed_and_names_are_whole(width: int) -> None:
    text = shown(width)
    lines = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert set(RECIPES) <= lines and set(ARMS) <= lines
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "OLTR" in words and "not implemented" in words


def test_the_state_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    recipe = find_recipe("cifar100_lt_balanced_softmax")
    assert data_state(find_recipe("demo")) == "embedded" and data_state(recipe) == "absent"
    assert str(tmp_path) in "".join(shown(200, print_data).split())
    (tmp_path / "cifar100_lt.npz").touch()
    assert data_state(recipe) == "present"
    ensure_data(recipe)


def test_the_papers_numbers() -> None:
    assert paper_numbers(find_recipe("cifar100_lt_balanced_softmax")) == "50.7 -> 51.7"
    assert paper_numbers(find_recipe("demo")) == "-"


def test_the_state_of_image_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    recipe = find_recipe("places_lt_paco")
    assert data_state(recipe) == "absent" and data_state(find_recipe("my_folder")) == "yours"
    with pytest.raises(FileNotFoundError, match="Places-LT not found"):
        ensure_data(recipe)
    words = "".join(shown(200, print_data).split())
    assert f"lookedforPlaces_LT_train.txtandPlaces_LT_test.txtin{tmp_path}" in words
    for part in ("train", "test"):
        (tmp_path / "places_lt").mkdir(exist_ok=True)
        (tmp_path / f"places_lt/Places_LT_{part}.txt").touch()
    assert data_state(recipe) == "present"
    ensure_data(recipe)
    assert f"places_ltpresent{tmp_path}/places_lt" in "".join(shown(200, print_data).split())


def test_long_tailed_tables_are_complete_but_for_systems_that_are_not_planned() -> None:
    rest = {row.method for row in ROWS if row.table in TABLES and row.recipe is None}
    assert rest == {"OLTR", "LFME", "BBN", "RIDE, 3 experts (published)"}
