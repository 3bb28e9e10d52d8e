"""Records: one small JSON file for each run that a published table quotes.

A record lies in ``results/<recipe>/<arm>/seed<seed>.json``. If settings differ from the recipe, a
folder names the variant: ``results/<recipe>/<variant>/<arm>/``. The folder that holds the arms is
one comparison: all its records have the same settings.

For runs that no longer exist, records hold the scores that were printed for a seed, and
``summary.json`` beside the arms holds means and intervals that were printed without seeds. Their
``source`` says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from batchformer.insight.figures import influence
from batchformer.insight.figures.networks import SingleNetwork
from batchformer.lab.config.recipe import NO_EFFECT_ON_SAME_DATA, Recipe, changed_settings, flatten
from batchformer.lab.recipes import RECIPES
from batchformer.lab.recipes.sweeps import SWEEPS
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.runs.folder import SIZES, recipe_from_json, write_json

FORMAT = 1
RUN = "run"  # the `source` of a record that was made from a run folder
SUMMARY = "summary.json"
LONGEST_NAME = 60  # characters of a variant's name that is made from its settings

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """What is kept of one run."""

    recipe: str  # its name; `SWEEP/LEVEL` for a run of a sweep
    variant: str  # names the settings that differ from the recipe; empty if none does
    arm: str
    seed: int  # pairs it with the runs of other arms
    settings: Settings  # those that differ from the recipe, by dotted name
    data: Mapping[str, Any]  # facts about the data, such as the hash of its split
    # Versions, hardware and command of each start and resumption
    sittings: Sequence[Mapping[str, Any]]
    # The final scores, None for one that could not be measured, and those of `influence_of`
    metrics: Mapping[str, float | None]
    minutes: float | None = None
    source: str = RUN  # `"run"`, or where the numbers were typed from
    more: Mapping[str, Any] | None = None  # other facts, such as the number of updates

    @property
    def path(self) -> str:
        """Its path below the folder of all records."""
        comparison = f"{self.recipe}/{self.variant}" if self.variant else self.recipe
        return f"{comparison}/{self.arm}/seed{self.seed}.json"

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings that decide what was computed, not where."""
        return {k: v for k, v in self.settings.items() if k not in NO_EFFECT_ON_SAME_DATA}

    def as_plain(self) -> dict[str, Any]:
        """The record as JSON, with its metrics last."""
        plain = {"format": FORMAT, "source": self.source, **vars(self)}
        plain |= plain.pop("more") or {}
        plain["metrics"] = plain.pop("metrics")
        made: dict[str, Any] = json.loads(json.dumps(plain))
        return made


def record_of(run: RecordedRun, variant: str = "") -> Record:
    """The record of a finished run.

    Args:
        variant: a name for its settings; by default made from those that differ.

    Raises:
        ValueError: the run has not finished, is damaged, or is of a recipe that this version does
            not know.
    """
    if run.result is None or run.damage is not None:
        raise ValueError(f"{run.folder} holds no finished run: {run.damage or 'no result.json'}.")
    config = json.loads((run.folder / "config.json").read_bytes())
    settings = {
        key: _shortened(value) for key, value in _changes(run.recipe_name, run.recipe).items()
    }
    more = {key: run.result[key] for key in ("updates", "selected") if key in run.result}
    if weights := config.get("weights"):
        more["weights_sha256"] = weights["sha256"]
    if run.taken_from:
        more["taken_from"] = run.taken_from
    record = Record(
        run.recipe_name,
        "",
        run.arm,
        run.seed,
        settings,
        {key: value for key, value in run.data.items() if key != "remarks"},
        _sittings(config),
        {**run.scores, **influence_of(run)},
        run.result.get("minutes"),
        more=more,
    )
    named = _folder_name(variant) if variant else variant_name(record.deciding)
    return replace(record, variant=named)


def influence_of(run: RecordedRun) -> dict[str, float]:
    """How samples influence one another in a run's network; empty if it was not looked at.

    ``influence`` is how far one other sample can change a loss. ``rarity`` is the rank correlation
    of a class's training images with its gradient on other samples, ``rarity_at_accuracy`` the same
    with the accuracy of classes held fixed.
    """
    network = SingleNetwork(run.insight, run.arm, run.seed, run.insight_figures)
    found = influence.gather(network)
    if found is None:
        return {}
    own = found.by_arm[run.arm]
    scores = {"influence": own.change, "rarity": own.correlation.rho}
    scores["rarity_at_accuracy"] = own.controlled.partial.rho if own.controlled else None
    return {name: score for name, score in scores.items() if score is not None}


def save(records: Iterable[Record], root: Path) -> tuple[list[Path], list[Path]]:
    """Write all records below ``root``, or none.

    Returns:
        The files that were written, and those that already held the same record.

    Raises:
        ValueError: a file already holds another record, or a folder would mix settings.
    """
    planned: dict[Path, dict[str, Any]] = {}
    unchanged: list[Path] = []
    for record in records:
        path, content = root / record.path, record.as_plain()
        before = planned.get(path) or (json.loads(path.read_bytes()) if path.exists() else None)
        if before is None:
            planned[path] = content
        elif before != content:
            raise ValueError(
                f"{path} already holds another record: {_what_differs(before, content)}. Remove "
                "that file if this run replaces it, or give --variant NAME to keep both."
            )
        elif path not in planned:
            unchanged.append(path)
    for folder in {path.parents[1] for path in planned}:
        new = [read_record(p, content) for p, content in planned.items() if p.parents[1] == folder]
        require_one_configuration([*records_in(folder), *new], folder)
    for path, content in planned.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
    return list(planned), unchanged


def records_in(folder: Path) -> list[Record]:
    """The records of one comparison: ``<folder>/<arm>/seed<seed>.json``."""
    return [read_record(path) for path in sorted(folder.glob("*/seed*.json"))]


def read_record(path: Path, content: Mapping[str, Any] | None = None) -> Record:
    """The record in a file."""
    try:
        plain = dict(json.loads(path.read_bytes()) if content is None else content)
        if int(plain.pop("format")) > FORMAT:
            raise ValueError(f"a newer version of batchformer wrote it, this one reads {FORMAT}")
        names = Record.__dataclass_fields__.keys() - {"more"}
        more = {key: plain.pop(key) for key in [*plain] if key not in names}
        return Record(**plain, more=more)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no record of a run: {error}. Make it again: batchformer record RUN"
        ) from error


def require_one_configuration(records: Sequence[Record], folder: Path) -> None:
    """Refuse a comparison whose records differ in settings, or whose arms differ in data."""
    for record in records[1:]:
        first = records[0]
        if record.deciding != first.deciding:
            raise ValueError(
                f"{folder} would mix settings: {_what_differs(first.deciding, record.deciding)} "
                f"({first.arm}/seed{first.seed} and {record.arm}/seed{record.seed}). Record these "
                "runs apart, each with its own --variant NAME."
            )
    files = {file for record in records if (file := (record.more or {}).get("weights_sha256"))}
    if len(files) > 1:
        raise ValueError(
            f"{folder}: these runs began with the weights of {len(files)} files (weights_sha256). "
            "Record them apart, each with its own --variant NAME."
        )
    found: dict[tuple[int, str], str] = {}
    for record, key in product(records, ("split_sha256", SIZES)):
        value = record.data.get(key)
        if value and found.setdefault((record.seed, key), value) != value:
            raise ValueError(
                f"{folder}: the arms of seed {record.seed} were trained on different data "
                f"(data.{key}). Record these runs apart, each with its own --variant NAME."
            )


def variant_name(settings: Settings) -> str:
    """A name for the settings that differ from a recipe; empty if none does.

    A long name ends in a hash of all settings, so that names are unique.

    >>> variant_name({"train.precision": "bf16", "train.channels_last": True})
    'channels_last,precision=bf16'
    >>> variant_name({})
    ''
    """
    short = {key: key.split(".")[-1] for key in settings}
    shared = {name for name in short.values() if [*short.values()].count(name) > 1}
    words = []
    for key, value in sorted(settings.items(), key=lambda item: short[item[0]]):
        name = key if short[key] in shared else short[key]
        if isinstance(value, bool):
            words.append(name if value else f"no_{name}")
        else:
            words.append(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    whole = ",".join(words)
    if not whole:
        return ""
    named = _folder_name(whole)
    if len(named) <= LONGEST_NAME and named == whole:
        return named
    text = json.dumps(settings, sort_keys=True)
    return f"{named[:LONGEST_NAME].rstrip(',.-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _folder_name(text: str) -> str:
    """Replace characters that a file system may refuse."""
    return re.sub(r"[^A-Za-z0-9_.=,+-]+", "-", text).strip(".-") or "variant"


def _changes(name: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run that differ from its recipe, by dotted name."""
    try:
        trained = recipe_from_json(plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The recipe of {name} cannot be read by this version: {error}") from error
    changed = changed_settings(_recipe(name), trained)
    made: dict[str, Any] = json.loads(json.dumps({key: new for key, (_, new) in changed.items()}))
    return made


def _recipe(name: str) -> Recipe:
    """The recipe of this name, or the level ``SWEEP/LEVEL`` of a sweep."""
    if name in RECIPES:
        return RECIPES[name]()
    sweep, _, level = name.partition("/")
    if sweep in SWEEPS:
        return SWEEPS[sweep].recipe(level, SWEEPS[sweep].base_recipe())
    raise ValueError(
        f"There is no recipe {name!r} to compare the settings of the run with. Record it with the "
        "version of batchformer that trained it."
    )


def _sittings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every start and resumption of a run, without the paths of the machine."""
    return [
        {key: _command(value) if key == "command" else value for key, value in sitting.items()}
        for sitting in config.get("sittings", ())
    ]


def _command(line: str) -> str:
    """A command without the paths of the machine where it was typed."""
    try:
        words = shlex.split(line)
    except ValueError:
        return line
    split = (word.partition("=") if word.startswith("-") else ("", "", word) for word in words)
    return shlex.join(name + equals + str(_shortened(value)) for name, equals, value in split)


def _shortened(value: Any) -> Any:
    """The last part of an absolute path; other values as they are."""
    if not isinstance(value, str):
        return value
    for kind in (PurePosixPath, PureWindowsPath):
        if kind(value).is_absolute() and kind(value).name:
            return kind(value).name
    return value


def _what_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The first few entries in which two objects differ."""
    old, new = flatten(before), flatten(after)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    listed = [f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in changed[:3]]
    rest = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
    return "; ".join(listed) + rest
