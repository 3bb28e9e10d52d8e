"""Help with a recipe: two screens of what has an effect on it; all the rest behind --help-all."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from batchformer.cli.arguments import parse_settings
from batchformer.cli.help import LEFT, short_help
from batchformer.cli.options import CompareOptions, Settings, SweepOptions, TrainOptions
from batchformer.lab.config.idle_settings import hidden_settings
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import RECIPES, find_recipe


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def shown(capsys: pytest.CaptureFixture[str], *words: str, name: str = "demo") -> str:
    with pytest.raises(SystemExit) as end:
        parse_settings(CompareOptions, words, f"compare {name}", find_recipe(name))
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_demonstrations_help_fits_two_screens(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--help").splitlines()
    assert len(lines) <= 100
    options = {line.split()[0] for line in lines if line.startswith("  --")}
    assert {"--seeds", "--data.ratio", "--hyper.cutmix", "--module.heads", "--optim.lr"} <= options
    assert not {"--data.root", "--hyper.margin", "--optim.betas", "--jobs.time"} & options
    words = "\n".join(lines)
    assert "or which: 100-119 or 0,2,7-9\n" in words, "also seeds that do not begin at 0"
    assert "--optim.lr 0.05" in words and "--help-all explains all" in words


@pytest.mark.parametrize("columns", [80, 100])
def test_no_line_is_longer_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in RECIPES:
        recipe = find_recipe(name)
        options = CompareOptions(**Settings.fields_of(recipe))
        for line in short_help(options, recipe, f"compare {name}").splitlines():
            assert len(line) <= columns, line
            words = re.match(r"  --\S+(?: \S+)*  +(?=\S)", line)
            assert words is None or words.end() == LEFT + 3, f"not in the column of words: {line}"


def test_help_follows_what_is_set_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = shown(capsys, "--method", "ldam", "--optim.name", "adam", "--optim.lr", "0.2", "-h")
    assert "--hyper.margin 0.5" in words and "--optim.betas" in words and "lr 0.2" in words
    assert "--hyper.cutmix" not in words and "--optim.nesterov" not in words
    contradiction = shown(capsys, "--method", "paco", "--help")
    assert "--hyper.cutmix" in contradiction, "the help of the recipe as it is"


def values(settings: Any, prefix: str = "") -> dict[str, object]:
    """Every setting by its name, such as ``optim.lr``."""
    found: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        inner = dataclasses.is_dataclass(value)
        found |= values(value, f"{field.name}.") if inner else {f"{prefix}{field.name}": value}
    return found


def default(recipe: Recipe, setting: str) -> object:
    group, _, name = setting.rpartition(".")
    settings: Any = getattr(recipe, group) if group else recipe
    (field,) = (field for field in dataclasses.fields(settings) if field.name == name)
    return field.default


def test_help_shows_all_that_has_an_effect_and_hides_nothing_that_is_set() -> None:
    shown_for = {}  # one recipe for each set of hidden settings: the help of others has the same
    for name in RECIPES:
        recipe = find_recipe(name)
        hidden, given = hidden_settings(recipe), values(recipe)
        for setting in hidden & given.keys():
            assert given[setting] == default(recipe, setting), f"{name} hides {setting}"
        shown_for[frozenset(hidden)] = recipe
    helps = [(CompareOptions, recipe) for recipe in shown_for.values()]
    for kind, recipe in (*helps, *((k, find_recipe("demo")) for k in (TrainOptions, SweepOptions))):
        options = kind(**Settings.fields_of(recipe))
        lines = short_help(options, recipe, recipe.name).splitlines()
        hidden = hidden_settings(recipe)
        settings = [s for s in values(options) if s not in hidden and not s.startswith("jobs.")]
        assert sum(line.startswith("  --") for line in lines) == len(settings), recipe.name
