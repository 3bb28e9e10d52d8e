"""Runs that leave out every domain once: one training for each, and their mean as the result.

``RUNS/RECIPE/ARM/seedN`` holds the mean; ``RUNS/RECIPE/ARM/seedN/DOMAIN`` is an ordinary run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.config.data import EACH, DomainConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import write_atomically
from batchformer.lab.engine.log import read_records
from batchformer.lab.runs.averaged_names import UNAVERAGED, todays_names
from batchformer.lab.runs.findings import USUAL, findings_of, of_parts
from batchformer.lab.runs.folder import read_result, write_figures, write_result
from batchformer.lab.runs.run import Run
from batchformer.lab.tasks.domains import read_domains

#: Arrays that a part has for its figures.
FIGURES = ("per_class", "train_counts", "correct", "classes", "confusion")


def by_target(recipe: Recipe) -> dict[str, Recipe]:
    """A recipe for every domain that is left out; a recipe with one target, or none, is itself."""
    data = recipe.data
    if not isinstance(data, DomainConfig) or data.target != EACH:
        return {"": recipe}
    domains = read_domains(data.name, data.root, data.lists, data.memory).domains
    return {
        name: dataclasses.replace(recipe, data=recipe.data_with(target=name)) for name in domains
    }


def parts_of(run: Run) -> tuple[Run, ...]:
    """The trainings that a run consists of: itself, or one for every target."""
    names = by_target(run.trained)  # the domains of the data that this arm trains on
    if "" in names:
        return (run,)
    return tuple(_leaving_out(run, name) for name in names)


def _leaving_out(run: Run, target: str) -> Run:
    """The training of a run that leaves out this domain; its arm still changes its recipe."""
    recipe = dataclasses.replace(run.recipe, data=run.recipe.data_with(target=target))
    return dataclasses.replace(run, recipe=recipe, folder=run.folder / target, part=target)


def combine(run: Run, parts: Sequence[Run]) -> bool:
    """Write the result of a run of several trainings, if all of them have finished.

    Returns:
        Whether it was written.
    """
    if not all(part.finished for part in parts):
        return False
    results = {part.part: read_result(part.folder) for part in parts}
    records = {part.part: read_records(part.folder / "metrics.jsonl") for part in parts}
    lines = [json.dumps(record) for record in mean_records(records)]
    write_atomically(run.folder / "metrics.jsonl", ("\n".join(lines) + "\n").encode())
    write_figures(run.folder / "figures.npz", joined_figures([part.folder for part in parts]))
    first = next(iter(results.values()))
    result = {
        "metrics": mean_scores(
            {name: todays_names(one["metrics"]) for name, one in results.items()}
        ),
        "minutes": round(sum(one["minutes"] for one in results.values()), 3),
        "updates": sum(one["updates"] for one in results.values()),
        "selected": first["selected"],
    }
    if found := of_parts({name: findings_of(results[name], records[name]) for name in results}):
        result["findings"] = found
    write_result(run.folder, result)  # last: it says that all is there
    return True


def mean_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Scores of every target and their mean, from the metrics of each training.

    With SWAD they are those of the averaged network, and those of the other network follow.

    >>> mean_scores({"a": {"a": 80.0, "val": 90.0}, "b": {"b": 60.0, "val": 92.0}})
    {'average': 70.0, 'a': 80.0, 'b': 60.0, 'val': 91.0}
    """
    headline = {name: metrics[name] for name, metrics in scores.items()}
    result = {"average": _mean(headline.values()), **headline}
    without = {
        key: metrics[key]
        for name, metrics in scores.items()
        if (key := f"{UNAVERAGED}_{name}") in metrics
    }
    if without:
        result |= {UNAVERAGED: _mean(without.values()), **without}
    for held_out in ("val", f"{UNAVERAGED}_val"):
        if found := [metrics[held_out] for metrics in scores.values() if held_out in metrics]:
            result[held_out] = _mean(found)
    return result


def mean_records(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Records of the steps that all trainings have, each value the mean over them.

    An evaluation has the score of every target, and ``average`` for their mean; with SWAD they are
    those of the network in training. What else a training recorded stays with it.
    """
    by_step = [
        {(r["step"], r["kind"]): r for r in own if r["kind"] in USUAL} for own in records.values()
    ]
    common = sorted(set.intersection(*(set(own) for own in by_step)))
    result = []
    for step, kind in common:
        found = {name: own[step, kind] for name, own in zip(records, by_step, strict=True)}
        values: dict[str, Any] = {"kind": kind, "step": step}
        if kind == "eval":
            values.update(mean_scores(found))
        shared = set.intersection(*(set(one) for one in found.values())) - values.keys()
        values.update({key: _mean(one[key] for one in found.values()) for key in sorted(shared)})
        result.append(values)
    return result


def joined_figures(folders: Sequence[Path]) -> dict[str, Any]:
    """What figures need: images of all targets one after the other, classes over all of them."""
    figures = []
    for folder in folders:
        with np.load(folder / "figures.npz", allow_pickle=False) as arrays:
            own = todays_names({name: arrays[name] for name in arrays.files})
        figures.append({name: own[name] for name in FIGURES})
    stacked = np.stack([one["per_class"] for one in figures])
    seen = ~np.isnan(stacked)
    total = np.where(seen, stacked, 0).sum(0)
    with np.errstate(invalid="ignore"):
        per_class = total / seen.sum(0)
    return {
        "per_class": per_class,
        "train_counts": np.rint(np.mean([one["train_counts"] for one in figures], 0)).astype(int),
        "correct": np.concatenate([one["correct"] for one in figures]),
        "classes": figures[0]["classes"],
        "confusion": np.sum([one["confusion"] for one in figures], 0),
    }


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))
