"""Runs that consist of several trainings: a chosen epoch, or each domain left out once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.config.data import EACH, DomainConfig, FeatureConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.distributed.rank_zero import on_rank_zero
from batchformer.lab.engine.log import read_records
from batchformer.lab.runs.folder import (
    UNAVERAGED,
    USUAL,
    findings_of,
    of_parts,
    read_result,
    todays_names,
    write_figures,
    write_result,
)
from batchformer.lab.runs.run import Run
from batchformer.lab.tasks.domains import read_domains
from batchformer.plug.files import write_atomically

# Runs whose epoch is chosen on classes of validation: trained twice, once without these classes.
#
# ``seedN/choose`` leaves out the classes of validation and never sees those of the test;
# ``seedN/train`` trains on all seen classes for as many epochs as were best in the first, and is
# scored at its end: nothing is chosen by the test.

CHOOSE, TRAIN = "choose", "train"


def epoch_parts(run: Run) -> tuple[Run, ...]:
    """The trainings of a run that can be trained by now: the second has to wait for the first."""
    choose = _part(run, CHOOSE, run.recipe, choose=False, unseen="val")
    if not choose.finished:
        return (choose,)
    epoch, _ = on_rank_zero(lambda: best(read_records(choose.folder / "metrics.jsonl")))
    length = dataclasses.replace(run.recipe.train, epochs=epoch, eval_epochs=epoch)
    recipe = dataclasses.replace(run.recipe, train=length)
    return choose, _part(run, TRAIN, recipe, choose=False)


def _part(run: Run, name: str, recipe: Recipe, **data: Any) -> Run:
    recipe = dataclasses.replace(recipe, data=recipe.data_with(**data))
    return dataclasses.replace(run, recipe=recipe, folder=run.folder / name, part=name)


def combine_epochs(run: Run, parts: Sequence[Run]) -> bool:
    """Write the result of a run of two trainings, if both have finished.

    Returns:
        Whether it was written.
    """
    by_part = {part.part: part.folder for part in parts if part.finished}
    if TRAIN not in by_part:
        return False
    chosen_on = read_records(by_part[CHOOSE] / "metrics.jsonl")
    epoch, score = best(chosen_on)
    results = {part: read_result(folder) for part, folder in by_part.items()}
    lines = (json.dumps(record) for record in read_records(by_part[TRAIN] / "metrics.jsonl"))
    write_atomically(run.folder / "metrics.jsonl", ("\n".join(lines) + "\n").encode())
    tried = [(one["epoch"], one["hm"]) for one in chosen_on if one["kind"] == "eval"]
    epochs, scores = zip(*tried, strict=True)
    figures = {
        "chosen_epoch": np.array(epoch),
        "choice_epochs": np.array(epochs),
        "choice_hm": np.array(scores, dtype=np.float64),
        **_curve(by_part[TRAIN] / "figures.npz"),
    }
    write_figures(run.folder / "figures.npz", figures)
    result = {
        "metrics": {**results[TRAIN]["metrics"], "val": score},
        "minutes": round(sum(one["minutes"] for one in results.values()), 3),
        "updates": sum(one["updates"] for one in results.values()),
        "selected": f"epoch {epoch}, by classes of validation",
    }
    write_result(run.folder, result)  # last: it says that all is there
    return True


def _curve(path: Path) -> dict[str, Any]:
    """What the second training kept of its curve of seen against unseen classes."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if name.startswith("bias_")}


def best(records: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """The epoch with the highest harmonic mean, the first of equals, and that score.

    >>> best([{"kind": "eval", "epoch": e, "hm": hm} for e, hm in ((50, 40.0), (100, 38.0))])
    (50, 40.0)
    """
    evaluated = [record for record in records if record["kind"] == "eval"]
    found = max(evaluated, key=lambda record: float(record["hm"]))
    return int(found["epoch"]), float(found["hm"])


# Runs that leave out every domain once: one training for each, and their mean as the result.
#
# ``RUNS/RECIPE/ARM/seedN`` holds the mean; ``RUNS/RECIPE/ARM/seedN/DOMAIN`` is an ordinary run.

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


def domain_parts(run: Run) -> tuple[Run, ...]:
    """The trainings that a run consists of: itself, or one for every target."""
    names = by_target(run.trained)  # the domains of the data that this arm trains on
    if "" in names:
        return (run,)
    return tuple(_leaving_out(run, name) for name in names)


def _leaving_out(run: Run, target: str) -> Run:
    """The training of a run that leaves out this domain; its arm still changes its recipe."""
    recipe = dataclasses.replace(run.recipe, data=run.recipe.data_with(target=target))
    return dataclasses.replace(run, recipe=recipe, folder=run.folder / target, part=target)


def combine_domains(run: Run, parts: Sequence[Run]) -> bool:
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
    figures: list[dict[str, Any]] = []
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


# The trainings that a run consists of: most often itself, sometimes several.


def parts_of(run: Run) -> tuple[Run, ...]:
    """Itself; one for every target that is left out; or one that chooses and one that is scored."""
    data = run.trained.data
    if isinstance(data, FeatureConfig) and data.choose:
        return epoch_parts(run)
    return domain_parts(run)


def combine(run: Run) -> bool:
    """Write the result of a run of several trainings, if all of them have finished.

    Returns:
        Whether it was written.
    """
    return on_rank_zero(lambda: _combine(run))


def _combine(run: Run) -> bool:
    if isinstance(run.trained.data, FeatureConfig):
        return combine_epochs(run, parts_of(run))
    return combine_domains(run, parts_of(run))
