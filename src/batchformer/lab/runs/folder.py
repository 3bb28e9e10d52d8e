"""The files of a run's folder: recipes as JSON, findings, names, and whether it may hold this."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from batchformer.lab.config.data import BY_TASK
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.log import read_records
from batchformer.plug.files import write_atomically

# Recipes as JSON holds them, today's and those of older versions; nothing here needs torch.

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


def recipe_to_json(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON holds it."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return plain


def recipe_from_json(plain: Mapping[str, Any]) -> Recipe:
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
        return recipe_to_json(with_absolute_paths(recipe_from_json(plain)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return plain


# What trainings found that is no score, as run folders keep it. Nothing here needs torch.

#: Kinds of records that every training has.
USUAL = ("train", "eval")
#: What a record has besides its values.
PLACE = ("kind", "epoch", "step")

Findings = dict[str, dict[str, Any]]


def findings_of(result: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Findings:
    """What a run found, by kind; of a run of several trainings by ``PART/KIND``.

    Args:
        result: of ``result.json``.
        records: of ``metrics.jsonl``, where earlier versions had it alone; the last of a kind
            counts.

    >>> findings_of({"findings": {"swad": {"updates": 3}}}, [])
    {'swad': {'updates': 3}}
    >>> findings_of({}, [{"kind": "swad", "epoch": 1, "step": 8, "updates": 3}])
    {'swad': {'updates': 3}}
    """
    found = result.get("findings")
    if isinstance(found, Mapping):
        return {kind: dict(each) for kind, each in found.items() if isinstance(each, Mapping)}
    return {
        str(record["kind"]): {key: each for key, each in record.items() if key not in PLACE}
        for record in records
        if record["kind"] not in USUAL
    }


def of_parts(parts: Mapping[str, Findings]) -> Findings:
    """What the trainings of one run found, by ``PART/KIND``: there is no mean of it.

    >>> of_parts({"photo": {"swad": {"updates": 3}}, "sketch": {}})
    {'photo/swad': {'updates': 3}}
    """
    return {
        f"{part}/{kind}": values for part, found in parts.items() for kind, values in found.items()
    }


# What is kept of a run with SWAD: plain names are the averaged network's, one name one meaning.
#
# ``photo``, ``val`` and ``per_class`` belong to the average of the weights, the same names after
# ``without_swad_`` to the network that was trained. Nothing here needs torch.

#: Before names of the network without the average; alone, the mean over targets.
UNAVERAGED = "without_swad"
#: Before names of the averaged network, in runs of earlier versions.
ONCE_AVERAGED = "swad_"


def todays_names(found: Mapping[str, T]) -> dict[str, T]:
    """Scores, or arrays, by the names that they have today.

    Earlier versions had the plain names for the network that was trained and ``swad_photo`` for the
    averaged one; over all targets they had the averaged scores, but a ``val`` without the average.

    >>> todays_names({"photo": 91.0, "val": 95.0, "swad_photo": 94.0, "swad_val": 97.0})
    {'photo': 94.0, 'val': 97.0, 'without_swad_photo': 91.0, 'without_swad_val': 95.0}
    >>> todays_names({"average": 94.0, "without_swad": 91.0, "val": 95.0})
    {'average': 94.0, 'without_swad': 91.0, 'without_swad_val': 95.0}
    >>> todays_names({"all": 51.0})
    {'all': 51.0}
    """
    twice = [name for name in found if ONCE_AVERAGED + name in found]
    if twice:
        averaged = {name: found[ONCE_AVERAGED + name] for name in twice}
        trained = {f"{UNAVERAGED}_{name}": found[name] for name in twice}
        known = {*twice, *(ONCE_AVERAGED + name for name in twice)}
        rest = {name: value for name, value in found.items() if name not in known}
        return {**averaged, **trained, **rest}
    before = UNAVERAGED in found and f"{UNAVERAGED}_val" not in found
    return {
        f"{UNAVERAGED}_val" if before and name == "val" else name: value
        for name, value in found.items()
    }


# The files of a run's folder: what it holds, and whether it may hold this.

#: Counts up when what a run's folder holds can no longer be read by versions from before.
FORMAT = 1
#: Settings that change no result, so that a run may go on with others.
OF_NO_EFFECT = ("train.workers", "train.parallel", "train.figures")
#: In ``RUNS/RECIPE``: the job of every run that was submitted.
RECORD = "submitted.json"


def recorded(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run that a folder holds, if it holds one.

    Raises:
        ValueError: it cannot be read, or a newer version wrote it.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    config = read_json(path, "trained")
    version = config.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(
            f"{path} is of format {version}, and this version of batchformer reads up to "
            f"{FORMAT}: it was written by a newer one. Use that one: pip install --upgrade "
            "batchformer"
        )
    return config


#: What helps where a file of a run folder is damaged.
ADVICE = "Put the file back, take its folder away, or give --runs another folder"


def read_json(path: Path, needed: str, advice: str = ADVICE) -> dict[str, Any]:
    """The object in a file of ours.

    Args:
        path: the file.
        needed: name of an object that must be in it.
        advice: what to do where it is damaged.

    Raises:
        ValueError: it is damaged; the file is named.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}). {advice}.") from error
    if not isinstance(content, dict) or not isinstance(content.get(needed), dict):
        raise ValueError(f"{path} is damaged: it has no object {needed!r}. {advice}.")
    return content


def has_result(folder: Path) -> bool:
    """Whether a run has come to its end: the last file that it writes is there.

    Raises:
        ValueError: it is there, but not whole; ours are, so somebody cut it in copying.
    """
    path = folder / "result.json"
    if path.exists():
        read_json(path, "metrics", "Remove it, and the same command writes it anew")
        return True
    return False


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run measured; a score that could not be measured is NaN.

    Raises:
        ValueError: the file is damaged.
    """
    result = read_json(folder / "result.json", "metrics")
    metrics = {name: math.nan if v is None else v for name, v in result["metrics"].items()}
    return {**result, "metrics": metrics}


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """What a run measured: its scores as ``metrics``, and what is kept beside them.

    JSON has no NaN and no infinity: such a score is null, which is NaN again where it is read.
    """
    write_json(folder / "result.json", _without_nan(result))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def refuse_other_configuration(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """A folder holds one configuration: mixing two would average what is not comparable.

    Returns:
        What is recorded of the run; None where nothing was trained, and so nothing is mixed.
    """
    before = recorded(folder)
    if before is None or not anything_trained(folder):
        return None
    changed = list(differences(completed(before["trained"]), config["trained"]))
    if changed:
        raise ValueError(
            f"{folder} holds a run of this name with other settings: {'; '.join(changed)}. Give "
            f"--runs another folder, or remove that one."
        )
    return before


def anything_trained(folder: Path) -> bool:
    """Whether a run below, or a part of one, has left more than its configuration."""
    kept = (path for name in ("result.json", "*.pt") for path in folder.rglob(name))
    return any(kept) or any(read_records(path) for path in folder.rglob("metrics.jsonl"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What differs between two configurations, less what has no effect.

    >>> list(differences({"train": {"updates": 6, "workers": 2}}, {"train": {"updates": 7}}))
    ['train.updates was 6, is 7']
    """
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from differences(a, b, f"{prefix}{key}.")
        elif a != b and f"{prefix}{key}" not in OF_NO_EFFECT:
            yield f"{prefix}{key} was {a}, is {b}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """All of the content, or nothing."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    """Arrays by name, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **figures)
    write_atomically(path, buffer.getvalue())
