"""What there is to run, as it is shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from batchformer.lab.config.arms import ARMS
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS
from batchformer.lab.recipes.sweeps import SWEEPS
from batchformer.lab.runs.listing import (
    data_state,
    levels_and_paper,
    paper_numbers,
    print_data,
    print_listing,
    print_matching,
    print_sweeps,
)


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


def test_words_choose_recipes_and_a_word_that_none_has_names_near_ones() -> None:
    text = shown(120, lambda console: print_matching(["CIFAR", "ride"], console))
    names = {line.split()[0] for line in text.splitlines() if not line.startswith(" ")}
    expected = {name for name in RECIPES if "cifar" in name and "ride" in name}
    assert names == {"Recipes", "recipe", *expected} and 1 < len(expected) < len(RECIPES)
    assert "batchformer_frozen" not in text
    for word, near in (("cifr", "Near: cifar10"), ("cifar100_lt_rid_", "Near: cifar100_lt_ride")):
        with pytest.raises(ValueError, match=rf"No recipe has '{word}' .*{near}"):
            print_matching([word])
    with pytest.raises(ValueError, match=r"of the paper\. `batchformer list` shows all"):
        print_matching(["qqqq"])


def test_a_row_shows_where_the_data_is_and_the_papers_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = shown(200)
    lines = text[: text.index("Arms")].splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    for name in RECIPES:
        recipe = find_recipe(name)
        place, *numbers = rows[name][1:]
        assert (place, " ".join(numbers)) == (data_state(recipe), paper_numbers(recipe)), name
    states = {"rotated_digits_irm": "embedded", "my_domains": "yours", "pacs_coral": "absent"}
    assert {name: rows[name][1] for name in states} == states
    words = " ".join(text.split())
    for line in (
        *(f"domains: {name}, " for name in ("pacs", "vlcs", "office_home", "terra_incognita")),
        *("domains: visda synthetic to real, mdd", "domains: vlcs, cross_entropy with swad"),
        *("compositional: ut_zappos, cge", "compositional: mit_states, open world, compcos"),
        *("generalized: cub, ce_gzsl", "generalized: npz, ce_gzsl"),
    ):
        assert line in words, line


def test_the_papers_numbers() -> None:
    assert paper_numbers(find_recipe("cifar100_lt_balanced_softmax")) == "50.7 -> 51.7"
    assert paper_numbers(find_recipe("demo")) == "-"
    assert paper_numbers(find_recipe("cifar100_lt_ride")) == "48"
    assert paper_numbers(find_recipe("imagenet_lt_ride_resnet10_two_stage")) == "-> 47.6"


def test_data_is_shown_where_it_is_or_with_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    words = "".join(shown(200, print_data).split())
    assert f"{tmp_path}/Places_LT_train.txtandno{tmp_path}/Places_LT_test.txt;train/" in words
    for part in ("train", "test"):
        (tmp_path / "places_lt").mkdir(exist_ok=True)
        (tmp_path / f"places_lt/Places_LT_{part}.txt").touch()
    assert f"places_ltpresent{tmp_path}/places_lt" in "".join(shown(200, print_data).split())


def test_every_recipe_stands_beside_its_row_of_the_paper() -> None:
    text = shown(80).split("Arms")[0]
    below: dict[str, str] = {}
    for line in text.splitlines()[2:]:
        if line.strip() and not line.startswith(" "):
            below[name := line.split()[0]] = ""
        elif line.strip():
            below[name] += f" {line.strip()}"
    assert list(below) == list(RECIPES)
    for name, words in below.items():
        assert words.endswith(f" {find_recipe(name).table}"), name


def test_a_row_that_two_tables_print_otherwise_says_so() -> None:
    """What the list shows is the number that a report compares with."""
    recipe = find_recipe("pacs_swad")
    assert paper_numbers(recipe) == "82.9 -> 83.9"
    assert recipe.table == "T6b (T7: 83.7) PACS, SWAD, ResNet-18"
    for name in RECIPES:
        printed = {(r.arm, next(iter(r.numbers.values()))) for r in ROWS if r.recipe == name}
        assert len(printed) <= 2 or name == "pacs_swad", name


@pytest.mark.parametrize("width", [80, 120])
def test_every_sweep_is_listed_with_its_levels_and_the_papers_numbers(width: int) -> None:
    text = shown(width, print_sweeps)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert set(SWEEPS) <= {line.split()[0] for line in lines if line.strip()}
    words = " ".join(text.split())
    assert "1* (43.2), 2 (43.2), 4 (42.7)," in words and "without (48.13)" in "".join(words)


def test_levels_without_a_number_have_none() -> None:
    assert levels_and_paper(SWEEPS["demo_layers"]) == "1*, 2, 4"
    assert levels_and_paper(SWEEPS["cifar100_lt_heads"]) == "1, 4* (51.7)"
