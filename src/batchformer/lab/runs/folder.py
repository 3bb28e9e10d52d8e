"""The files of a run's folder: recipes as JSON, results, and whether a folder may hold a run.

Nothing here needs torch.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.insight.files import write_atomically
from batchformer.lab.config.data import BY_TASK
from batchformer.lab.config.recipe import Recipe, effective_changes, flatten

Findings = dict[str, dict[str, Any]]

#: Increases when earlier versions can no longer read a run folder.
FORMAT = 1
#: File in ``RUNS/RECIPE`` with the job of every run that was submitted.
RECORD = "submitted.json"
#: Settings of data that name files or folders.
PATHS = ("root", "train_list", "test_list", "table", "vectors")
#: Key of a fact about the user's own images, which earlier versions did not record.
SIZES = "file_sizes_sha256"
#: Remark on a run whose image files changed their sizes under the same names.
CHANGED = "images have been changed under their names since this run began"
#: With SWAD, scores of the averaged network have plain names (``photo``, ``val``). Names of scores
#: of the network without averaging begin with this; by itself it names their mean over targets.
UNAVERAGED = "without_swad"
#: Optional entries of ``config.json``, and their types.
OBJECTS = {"data": dict, "built_with": dict, "sources": dict, "sittings": list}
#: What to do where a file of a run folder is damaged.
ADVICE = "Put the file back, move its folder away, or give --runs another folder"

# Recipes as JSON


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that its data is found from any working directory.

    A path that does not exist from here stays as it is: other folders are searched for it too.
    """
    changes = {}
    for name in PATHS:
        given = getattr(recipe.data, name, None)
        found = tuple(map(_absolute, given)) if isinstance(given, tuple) else _absolute(given)
        if found != given:
            changes[name] = found
    return recipe.changed(data=changes) if changes else recipe


def _absolute(given: str | None) -> str | None:
    path = Path(given or "").expanduser()
    if not given or not path.exists():
        return given
    # A folder must have one name, whichever relative path leads to it.
    return str(path.resolve() if ".." in path.parts else path.absolute())


def recipe_to_json(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON holds it."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return plain


def recipe_from_json(plain: Mapping[str, Any]) -> Recipe:
    """The recipe that :func:`recipe_to_json` wrote.

    Raises:
        ValueError: a value makes no sense, or is of the wrong type.
        TypeError: a setting does not exist, or is missing.
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
            tuples = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
            values[field.name] = kind(**tuples)
    return Recipe(**values)


# Reading and writing files


def read_json(path: Path, needed: str, advice: str = ADVICE) -> dict[str, Any]:
    """The object in a JSON file of a run folder.

    Args:
        needed: name of an object that must be in it.
        advice: what to do if it is damaged.

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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write all of the content, or nothing."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    """Write arrays by name, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **figures)
    write_atomically(path, buffer.getvalue())


def read_figures(path: Path) -> dict[str, Any]:
    """The arrays that :func:`write_figures` wrote.

    Raises:
        ValueError: the file is damaged or missing.
    """
    try:
        with path.open("rb") as stream, np.lib.npyio.NpzFile(stream) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged or missing ({error}). Remove {path.with_name('result.json')}, and "
            "the same command writes both again."
        ) from error


def read_config(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run in a folder; None if there is no run."""
    path = folder / "config.json"
    if not path.exists():
        return None
    config = read_json(path, "trained")
    version = config.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(
            f"{path} has format {version}, and this version of batchformer reads up to {FORMAT}: "
            "a newer version wrote it. Use that one: pip install --upgrade batchformer"
        )
    for name, kind in OBJECTS.items():
        if not isinstance(config.get(name, kind()), kind):
            raise ValueError(f"{path} is damaged: {name!r} is {config[name]!r}. {ADVICE}.")
    return config


def has_result(folder: Path) -> bool:
    """Whether a run has finished: the last file that it writes is there.

    Raises:
        ValueError: the file is cut. Runs write it whole, so it was cut later.
    """
    path = folder / "result.json"
    if path.exists():
        read_json(path, "metrics", "Remove it, and the same command writes it again")
        return True
    return False


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run measured. A score that could not be measured is NaN."""
    result = read_json(folder / "result.json", "metrics")
    metrics = {name: math.nan if v is None else v for name, v in result["metrics"].items()}
    return {**result, "metrics": metrics}


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write what a run measured: its scores as ``metrics``, and other facts beside them.

    JSON has no NaN and no infinity. Such a score is written as null and read as NaN.
    """
    write_json(folder / "result.json", _without_nan(result))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def findings_of(result: Mapping[str, Any]) -> Findings:
    """What a run found besides scores, by kind; for a run of several trainings by ``PART/KIND``.

    >>> findings_of({"metrics": {}, "findings": {"swad": {"updates": 3}}})
    {'swad': {'updates': 3}}
    """
    found = result.get("findings")
    if not isinstance(found, Mapping):
        return {}
    return {kind: dict(each) for kind, each in found.items() if isinstance(each, Mapping)}


# Runs that were submitted to a cluster


def read_jobs(record: Path) -> Mapping[str, Mapping[str, str]]:
    """The jobs in a file :data:`RECORD`, by run."""
    jobs: Mapping[str, Mapping[str, str]] = {}
    return read_json(record, "jobs")["jobs"] if record.exists() else jobs


def not_begun(folder: Path) -> list[str]:
    """A line for each run at or below a folder that was submitted and has not begun."""
    return [
        f"{record.parent / key} (job {one['job']})"
        for record in sorted({*folder.glob(RECORD), *folder.glob(f"*/{RECORD}")})
        for key, one in read_jobs(record).items()
        if not (record.parent / key / "config.json").exists()
    ]


# Whether a folder may hold a run


def refuse_other_configuration(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """Refuse to train a second configuration in a folder: their results are not comparable.

    Returns:
        The configuration in the folder; None where nothing was trained yet.
    """
    before = read_config(folder)
    if before is None or not anything_trained(folder):
        return None
    changed = effective_changes(before["trained"], config["trained"])
    if before.get("seed") != config["seed"]:  # the folder was copied or renamed
        changed.append(f"seed was {before.get('seed')}, is {config['seed']}")
    if changed:
        old, new = (flatten(one["trained"]).get("data.root") for one in (before, config))
        moved = len(changed) == 1 and old and new and old != new and _may_have_moved(old, new)
        hint = f" Was the data only moved? Put a link at {old}, and name it: --data.root {old}"
        raise ValueError(
            f"{folder} holds a run of this name with other settings: {'; '.join(changed)}. Give "
            f"--runs another folder, or remove that one.{hint if moved else ''}"
        )
    return before


def _may_have_moved(old: str, new: str) -> bool:
    """Whether the old path does not exist, or is a link to the new one."""
    return not Path(old).exists() or Path(old).resolve() == Path(new).resolve()


def refuse_other_data(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run with other data or initial weights than it began with.

    Facts that only one of the two configurations has are not compared: another version wrote it.
    Neither are sizes of files, as a damaged image may be replaced: :func:`with_changes_noted`.
    """
    facts = ("data", "draws", "weights")
    old, new = (flatten({key: one[key] for key in facts if key in one}) for one in (before, now))
    changed = [
        f"{key} was {old[key]}, is {new[key]}"
        for key in old.keys() & new.keys() - {"data.remarks", f"data.{SIZES}", "weights.file"}
        if old[key] != json.loads(json.dumps(new[key]))
    ]
    if changed:
        raise ValueError(
            f"{folder} holds a stopped run that was begun with other data or weights: "
            f"{'; '.join(sorted(changed))}. Put them back, give --runs another folder, or remove "
            "that one."
        )


def with_changes_noted(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a run's data, with a remark if its files had other sizes at an earlier start.

    >>> with_changes_noted({SIZES: "a"}, {SIZES: "b"})["remarks"]
    ['images have been changed under their names since this run began']
    """
    remarks, size = now.get("remarks", []), now.get(SIZES)
    if CHANGED not in before.get("remarks", ()) and before.get(SIZES, size) == size:
        return dict(now)
    return {**now, "remarks": [*remarks, CHANGED]}


def refuse_other_sources(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a run whose start or teacher was trained again, with other settings, since it began.

    Args:
        before: settings of its sources when it began, by role.
        now: settings of those that are still there.
    """
    for role in before.keys() & now.keys():
        if changed := effective_changes(before[role], now[role]):
            raise ValueError(
                f"{folder} holds a run whose {role} has been trained again with other settings: "
                f"{'; '.join(changed)}. Give --runs another folder, or remove that one."
            )


def anything_trained(folder: Path) -> bool:
    """Whether a run in or below a folder has left more than its configuration."""
    from batchformer.lab.engine.log import read_records  # late: it imports torch

    kept = (path for name in ("result.json", "*.pt") for path in folder.rglob(name))
    return any(kept) or any(read_records(path) for path in folder.rglob("metrics.jsonl"))
