"""The registry of methods: names are choices of the command line, and every class is there."""

from __future__ import annotations

import dataclasses
import importlib
from typing import get_args, get_type_hints

import pytest

from batchformer.lab.config.data import BY_TASK
from batchformer.lab.config.methods import METHODS, MethodName, find_method
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.settings import MethodConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.recipes import RECIPES, find_recipe


def test_every_method_has_a_name_for_the_command_line() -> None:
    assert get_args(MethodName) == get_args(get_type_hints(Recipe)["method"]) == tuple(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_declaration_names_what_there_is(name: str) -> None:
    entry = METHODS[name]
    file, _, kind = entry.path.partition(":")
    found = getattr(importlib.import_module(f"batchformer.lab.methods.{file}"), kind)
    assert issubclass(found, Method)
    assert entry.tasks and set(entry.tasks) <= set(BY_TASK)
    for setting in entry.reads:
        first, _, own = setting.rpartition(".")
        kinds = [BY_TASK[task] for task in entry.tasks] if first else [Recipe]
        assert all(own in {field.name for field in dataclasses.fields(kind)} for kind in kinds)
    if entry.loss_change is not None:
        assert entry.loss_change[0] in {field.name for field in dataclasses.fields(MethodConfig)}


def test_every_method_and_every_task_has_a_recipe() -> None:
    assert {find_recipe(name).method for name in RECIPES} == set(METHODS)


def test_an_unknown_method_is_answered_with_all() -> None:
    with pytest.raises(ValueError, match="no method 'focl'; there are cross_entropy, balanced"):
        find_method("focl")
    with pytest.raises(ValueError, match="method is 'focl'; it takes cross_entropy or balanced"):
        find_recipe("demo").changed(method="focl")


@pytest.mark.parametrize(
    ("recipe", "method", "words"),
    [
        ("demo", "coral", "coral is for images of several domains, and not for the task long_"),
        ("demo", "moco_v2", "moco_v2 is for two views of images without labels"),
        ("demo", "detector", "is for images with boxes"),
        ("demo", "cge", "is for images of attributes and objects"),
        ("rotated_digits_erm", "eszsl", "is for features and attributes of classes"),
        ("rotated_digits_erm", "paco", "which has cross_entropy, balanced_softmax, ldam, coral"),
        ("cub_ce_gzsl", "cge", "which has ce_gzsl, .*eszsl; `batchformer list cge` shows"),
    ],
)
def test_a_method_is_refused_for_tasks_that_it_does_not_fit(
    recipe: str, method: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        find_recipe(recipe).changed(method=method)
