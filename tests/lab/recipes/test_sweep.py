"""What a sweep is: levels of one factor, each a recipe."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.lab.config.comparable import changed_settings
from batchformer.lab.recipes.small import demo
from batchformer.lab.recipes.sweeps import Level, Sweep, unchanged, with_settings

ONE, TWO = (
    Level(name="1", change=unchanged),
    Level(name="2", change=with_settings("module", layers=2), row="cifar100_lt_balanced_softmax"),
)


def depth(**changes: object) -> Sweep:
    options = {"name": "depth", "base": "demo", "factor": "layers", "reference": "1"}
    return Sweep(levels=(ONE, TWO), **{**options, **changes})  # type: ignore[arg-type]


def test_a_level_is_the_base_with_its_change_and_words_of_its_own() -> None:
    base = dataclasses.replace(demo(), train=dataclasses.replace(demo().train, updates=7))
    recipe = depth().recipe("2", base)
    assert recipe.name == "depth/2" and "layers: 2" in recipe.summary
    assert changed_settings(base, recipe) == {"module.layers": (1, 2)}
    assert changed_settings(base, depth().recipe("1", base)) == {}
    assert recipe.train.updates == 7


def test_the_reference_has_the_papers_numbers_of_the_base_and_others_their_own() -> None:
    base = dataclasses.replace(demo(), paper={"baseline": {"all": 3.0}})
    assert depth().recipe("1", base).paper == {"baseline": {"all": 3.0}}
    paper = depth().recipe("2", base).paper
    assert (paper["baseline"]["all"], paper["batchformer"]["all"]) == (50.7, 51.7)


def test_a_baseline_that_no_level_changes_is_trained_once() -> None:
    arms, levels = ["batchformer", "baseline", "batchformer_self"], ["2"]
    assert depth().cells(arms, levels) == [
        ("1", "baseline"),
        ("2", "batchformer"),
        ("2", "batchformer_self"),
    ]
    assert depth(baseline="each").cells(["batchformer"], ["1", "2"]) == [
        ("1", "baseline"),
        ("2", "baseline"),
        ("1", "batchformer"),
        ("2", "batchformer"),
    ]


def test_mistakes_are_answered_in_words() -> None:
    with pytest.raises(ValueError, match="depth has no level '3'; its levels are 1, 2"):
        depth().level("3")
    with pytest.raises(ValueError, match="no level '9' to compare with"):
        depth(reference="9")
    with pytest.raises(ValueError, match="varies the recipe nothing, which this version does not"):
        depth(base="nothing").base_recipe()
