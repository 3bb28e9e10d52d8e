"""Recipes through JSON: today's, older ones, and what is none of ours."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.config.data import BY_TASK, DomainConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.folder import completed, recipe_from_json, recipe_to_json

SECTIONS = ("data", "hyper", "module", "optim", "schedule", "train")


def test_json_and_back() -> None:
    recipe = find_recipe("cifar100_lt_ride")
    assert recipe.schedule.milestones, "a tuple, which JSON does not have"
    plain = json.loads(json.dumps(recipe_to_json(recipe)))
    assert recipe_from_json(plain) == recipe and completed(plain) == plain


def test_a_recipe_from_before_a_setting_existed_has_its_default() -> None:
    plain = recipe_to_json(find_recipe("demo"))
    del plain["hyper"], plain["start"], plain["teacher"], plain["stride"], plain["data"]["augment"]
    assert recipe_from_json(plain) == find_recipe("demo")
    assert completed(plain) == recipe_to_json(find_recipe("demo"))
    assert "hyper" not in plain, "what was given is left as it is"


def test_every_task_has_its_data() -> None:
    assert set(BY_TASK) == set(typing.get_args(typing.get_type_hints(Recipe)["task"]))
    assert all(dataclasses.is_dataclass(kind) for kind in BY_TASK.values())


def test_data_is_read_as_its_task_has_it() -> None:
    plain = recipe_to_json(find_recipe("demo"))
    domains = {"name": "pacs", "target": "sketch"}
    read = recipe_from_json({**plain, "task": "domains", "data": domains})
    assert read.data == DomainConfig(name="pacs", target="sketch")
    assert recipe_from_json(recipe_to_json(read)) == read
    with pytest.raises(TypeError, match="target"):
        recipe_from_json({**plain, "data": domains})


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ValueError, match="no task 'captioning'; there are long_tailed"):
        recipe_from_json({**recipe_to_json(find_recipe("demo")), "task": "captioning"})


def test_a_value_of_another_kind_is_a_type_error_that_says_where() -> None:
    plain = recipe_to_json(find_recipe("voc_fpn"))
    plain["data"]["trained_on"] = [None]
    with pytest.raises(TypeError, match="data has a value of another kind"):
        recipe_from_json(plain)


@pytest.mark.parametrize(
    "change",
    [
        {"colour": "blue"},
        {"task": "captioning"},
        {"task": ["long_tailed"]},
        {"data": None},
        {"data": {"imbalance": 3}},
        {"data": {"ratio": "many"}},
        {"train": [1, 2]},
        {"method": "crt"},
    ],
)
def test_what_is_none_of_ours_is_left_as_it_is(change: dict[str, Any]) -> None:
    plain = {**recipe_to_json(find_recipe("demo")), **change}
    del plain["hyper"]
    assert completed(plain) is plain


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = [field.name for field in dataclasses.fields(Recipe)]
PLACES = [(name,) for name in FIELDS] + [
    (section, field.name)
    for section in SECTIONS
    for field in dataclasses.fields(getattr(find_recipe("demo"), section))
]


@settings(max_examples=100, deadline=None)
@given(places=st.dictionaries(st.sampled_from(PLACES), ANYTHING, max_size=3))
def test_nothing_recorded_makes_it_raise(places: dict[tuple[str, ...], Any]) -> None:
    plain = copy.deepcopy(recipe_to_json(find_recipe("demo")))
    for place, value in sorted(places.items(), key=lambda item: -len(item[0])):
        (plain if len(place) == 1 else plain[place[0]])[place[-1]] = value
    found = completed(plain)
    assert found is plain or found.keys() == set(FIELDS)


def test_it_does_not_wait_for_torch() -> None:
    code = "import batchformer.lab.runs.folder, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
