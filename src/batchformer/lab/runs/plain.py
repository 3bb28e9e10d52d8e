"""Recipes as JSON holds them, today's and those of older versions; nothing here needs torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from batchformer.lab.config.data import BY_TASK
from batchformer.lab.config.recipe import Recipe

T = TypeVar("T")

#: Settings of data that name files or folders.
PATHS = ("root", "train_list", "test_list", "table", "vectors")


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe whose data is found from any working directory.

    A path that is not there from here stays as it is: some are looked for in other folders, too.
    """
    changes = {}
    for name in PATHS:
        given = getattr(recipe.data, name, None)
        found = tuple(map(_absolute, given)) if isinstance(given, tuple) else _absolute(given)
        if found != given:
            changes[name] = found
    return dataclasses.replace(recipe, data=recipe.data_with(**changes)) if changes else recipe


def _absolute(given: str | None) -> str | None:
    path = Path(given or "").expanduser()
    return str(path.absolute()) if given and path.exists() else given


def as_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON holds it."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return plain


def from_plain(plain: Mapping[str, Any]) -> Recipe:
    """The recipe that :func:`as_plain` wrote.

    A recipe from before a setting existed has what is now its default.

    Raises:
        ValueError: a value makes no sense.
        TypeError: a setting that does not exist, lacks, or has a value of another kind.
    """
    task = plain.get("task")
    if not isinstance(task, str) or task not in BY_TASK:
        raise ValueError(f"There is no task {task!r}; there are {', '.join(BY_TASK)}.")
    values: dict[str, Any] = dict(plain)
    for field in dataclasses.fields(Recipe):
        kind: Any = BY_TASK[task] if field.name == "data" else field.default_factory
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            given = values.get(field.name, {})
            if not isinstance(given, Mapping):
                raise TypeError(f"{field.name} is {given!r}, not settings by name")
            lists = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
            values[field.name] = _made(kind, lists, field.name)
    return _made(Recipe, values, "the recipe")


def _made(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """An object of settings; whatever its own checks stumble over is a value of another kind."""
    try:
        return kind(**values)
    except (AttributeError, LookupError, ArithmeticError) as error:
        raise TypeError(f"{what} has a value of another kind: {error}") from error


def completed(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recorded recipe with today's default for every setting that it does not have, and with
    absolute paths.

    One that this version does not know (other fields, other tasks) is given back as it is.

    >>> completed({"name": "mine", "depth": 3})
    {'name': 'mine', 'depth': 3}
    """
    try:
        return as_plain(with_absolute_paths(from_plain(plain)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return plain
