"""Group runs by configuration: a recipe's name alone does not say that runs are comparable."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from batchformer.lab.config.arms import BASELINE, MAIN
from batchformer.lab.config.idle_settings import hidden_settings
from batchformer.lab.config.recipe import (
    DESCRIPTION,
    NO_EFFECT_ON_SAME_DATA,
    OF_BATCHFORMER,
    flatten,
    trains_batchformer,
)
from batchformer.lab.report.results.names import arm_colours, sorted_arms
from batchformer.lab.report.results.provenance import version_notes
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.runs.folder import recipe_from_json

K = TypeVar("K")

#: Top-level keys that describe a recipe, or that tell its runs apart.
LABELS = frozenset({*DESCRIPTION, "seed", "arm"})


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that may be compared: one recipe, and one configuration in every arm."""

    name: str
    runs: tuple[RecordedRun, ...]
    warnings: tuple[str, ...] = ()
    reference: str = BASELINE  # the others are compared with this arm; its runs may be missing

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe of the newest run: it has the latest description."""
        return max(self.runs, key=_started).recipe

    @property
    def arms(self) -> list[str]:
        """The reference, then the others in the known order."""
        return sorted(
            sorted_arms(run.arm for run in self.runs), key=lambda arm: arm != self.reference
        )

    def of(self, arm: str) -> list[RecordedRun]:
        """The runs of one arm by seed."""
        return sorted((run for run in self.runs if run.arm == arm), key=lambda run: run.seed)

    def colours_of(self, arms: Iterable[str]) -> dict[str, str]:
        """A colour for each of these arms."""
        return arm_colours(arms)


def comparable(runs: Iterable[RecordedRun], reference: str | None = None) -> list[RunGroup]:
    """Group finished runs by recipe and configuration.

    Without a ``reference`` each group is compared with its baseline or, where none has finished,
    with the first arm in the known order that shares a seed with another arm.

    One recipe name with several configurations becomes several groups, named by what differs.
    Configurations that differ in BatchFormer alone share a baseline, which has no BatchFormer. No
    other arm is shared between groups. Of two runs with the same arm, seed and configuration the
    later one is kept.
    """
    by_name: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        if run.state == "finished":
            by_name[run.recipe_name].append(run)
    groups: list[RunGroup] = []
    for name, members in sorted(by_name.items()):
        members = _with_one_file_of_weights(members)
        sides = [side for same in _split(members, shared=True) for side in _by_module(same)]
        conflicting = _conflicting(members) if len(sides) > 1 else {}
        groups += [_group(name, side, conflicting, reference) for side in sides]
    return groups


def one_group(runs: Iterable[RecordedRun], reference: str | None = None) -> RunGroup:
    """The single group of these runs; refuse several, since a figure would average them."""
    groups = comparable(runs, reference)
    if len(groups) != 1:
        found = ", ".join(group.name for group in groups) or "none that has finished"
        raise ValueError(
            f"A figure shows runs of one configuration, got {found}. Give the folders of one."
        )
    return groups[0]


def fingerprint(recipe: Mapping[str, Any], *, shared: bool = False) -> str:
    """Hash of the settings that runs must have in common to be compared.

    ``shared`` leaves out BatchFormer's settings, which arms without BatchFormer do not read.

    >>> fingerprint({"name": "a", "train": {"updates": 10, "workers": 4}})
    '2d4ec438924e'
    """
    text = json.dumps(_flat(recipe, _left_out(shared)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differing(runs: Mapping[str, RecordedRun]) -> dict[str, dict[str, str]]:
    """Settings in which these runs differ, each with its value in every run by the run's name.

    The description of a recipe, settings without effect and the seed are left out.
    """
    flats = {name: _flat(run.configuration, _left_out(shared=False)) for name, run in runs.items()}
    return _values_that_differ(flats)


def settings(group: RunGroup) -> dict[str, str]:
    """The settings of the runs by dotted key; if runs differ in a setting, all its values.

    Settings without effect on this recipe, such as those of other methods, are left out.
    """
    # Only runs with BatchFormer read its settings.
    reading = {run for run in group.runs if trains_batchformer(run.trained)} or {*group.runs}
    flats = [
        _flat(run.configuration, LABELS if run in reading else LABELS | OF_BATCHFORMER)
        for run in group.runs
    ]
    found = {
        key: dict.fromkeys(flat[key] for flat in flats if key in flat)
        for key in dict.fromkeys(key for flat in flats for key in flat)
    }
    hidden = _without_effect(group.recipe)
    return {
        key: _either(values)
        for key, values in found.items()
        if key not in hidden or len(values) > 1
    }


def _without_effect(recipe: Mapping[str, Any]) -> set[str]:
    """Settings that this recipe does not read; none if this version cannot read the recipe."""
    try:
        return hidden_settings(recipe_from_json(recipe))
    except (ValueError, TypeError):
        return set()


def _with_one_file_of_weights(runs: list[RecordedRun]) -> list[RecordedRun]:
    """Group runs that began without a file of weights with the others, if these share one file."""
    files = {run.weights for run in runs} - {""}
    if len(files) != 1:
        return runs
    (file,) = files
    return [run if run.weights else replace(run, weights=file) for run in runs]


def _split(runs: Sequence[RecordedRun], *, shared: bool) -> list[list[RecordedRun]]:
    found: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        found[fingerprint(run.configuration, shared=shared)].append(run)
    return list(found.values())


def _by_module(runs: Sequence[RecordedRun]) -> list[list[RecordedRun]]:
    """Split runs into groups with one configuration of BatchFormer each.

    A run without BatchFormer joins the group whose settings it recorded, or else the first group.
    If a group has no baseline for a seed, it takes the one of another group.
    """
    groups = _split([run for run in runs if trains_batchformer(run.trained)], shared=False)
    if len(groups) < 2:
        return [list(runs)]
    others = [run for run in runs if not trains_batchformer(run.trained)]
    with_settings = {fingerprint(group[0].configuration): group for group in groups}
    for run in others:
        with_settings.get(fingerprint(run.configuration), groups[0]).append(run)
    baselines = [run for run in others if run.arm == BASELINE]
    own = [{run.seed for run in group if run.arm == BASELINE} for group in groups]
    return [
        group + [run for run in baselines if run.seed not in seeds]
        for group, seeds in zip(groups, own, strict=True)
    ]


def _group(
    name: str,
    runs: Sequence[RecordedRun],
    conflicting: Mapping[str, Mapping[RecordedRun, str]],
    reference: str | None,
) -> RunGroup:
    warnings = []
    if conflicting:
        listed = "; ".join(f"{key}: {_either(by.values())}" for key, by in conflicting.items())
        warnings.append(f"{name} was run with several configurations, compared apart ({listed})")
        own = {
            key: [values[run] for run in runs if run in values]
            for key, values in conflicting.items()
        }
        name = f"{name} ({', '.join(f'{key} {_either(own[key])}' for key in own if own[key])})"
    kept: dict[tuple[str, int], RecordedRun] = {}
    for run in sorted(runs, key=_started):
        earlier = kept.get((run.arm, run.seed))
        if earlier is not None:
            warnings.append(f"{run.name} was found twice: {run.folder} replaces {earlier.folder}")
        kept[run.arm, run.seed] = run
    warnings += version_notes(name, kept.values(), lambda run: run.arm)
    if reference is None:
        reference = _default_reference(runs)
        if reference != BASELINE:
            warnings.append(f"{name} has no finished baseline and is compared with {reference}")
    return RunGroup(name, tuple(kept.values()), tuple(warnings), reference)


def _default_reference(runs: Sequence[RecordedRun]) -> str:
    """The baseline; if there is none, the first arm that shares a seed with another."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        seeds[run.arm].add(run.seed)
    if BASELINE in seeds:
        return BASELINE
    # BatchFormer is compared with controls, so it is the last choice for a reference.
    ordered = sorted(sorted_arms(seeds), key=lambda arm: arm == MAIN)
    shared = (
        arm for arm in ordered if any(seeds[arm] & seeds[other] for other in seeds if other != arm)
    )
    return next(shared, BASELINE)


def _conflicting(runs: Sequence[RecordedRun]) -> dict[str, dict[RecordedRun, str]]:
    """Keys in which these runs differ but should not, with the value of each run."""
    shared = {run: _flat(run.configuration, _left_out(shared=True)) for run in runs}
    whole = {
        run: _flat(run.configuration, _left_out(shared=False))
        for run in runs
        if trains_batchformer(run.trained)
    }
    differ = [_values_that_differ(flats) for flats in (shared, whole)]
    return {
        key: {run: value for found in differ for run, value in found.get(key, {}).items()}
        for key in sorted({*differ[0], *differ[1]})
    }


def _values_that_differ(flats: Mapping[K, Mapping[str, str]]) -> dict[str, dict[K, str]]:
    """The settings whose values are not all equal, each with its value by the keys of ``flats``."""
    keys = dict.fromkeys(key for flat in flats.values() for key in flat)
    found = {key: {name: flat.get(key, "absent") for name, flat in flats.items()} for key in keys}
    return {key: values for key, values in found.items() if len(set(values.values())) > 1}


def _either(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))


def _left_out(shared: bool) -> frozenset[str]:
    return LABELS | NO_EFFECT_ON_SAME_DATA | (OF_BATCHFORMER if shared else frozenset())


def _flat(recipe: Mapping[str, Any], left_out: frozenset[str]) -> dict[str, str]:
    """Dotted keys and values as text, without the keys and groups of keys in ``left_out``."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in flatten(recipe).items()
        if key not in left_out and key.partition(".")[0] not in left_out
    }


def _started(run: RecordedRun) -> str:
    return str(run.provenance.get("started", ""))
