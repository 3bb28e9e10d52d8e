"""Runs that consist of several trainings, called parts.

Two kinds of runs have parts, each in a folder of its own below that of the run:

- A run that leaves out every domain once has one part for each: ``seedN/DOMAIN``. Its result is
  their mean.
- A run that chooses its epoch on validation classes has two. ``seedN/choose`` leaves out these
  classes and never sees the test classes. ``seedN/train`` trains on all seen classes for as many
  epochs as were best in the first, and is scored at its end, so the test chooses nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.distributed.rank_zero import on_rank_zero
from batchformer.lab.engine.log import read_records, write_records
from batchformer.lab.runs.folder import (
    UNAVERAGED,
    findings_of,
    read_figures,
    read_result,
    write_figures,
    write_result,
)
from batchformer.lab.runs.run import Run

CHOOSE, TRAIN = "choose", "train"


def parts_of(run: Run) -> tuple[Run, ...]:
    """The trainings of a run that can begin by now; most runs are a single training.

    A run that chooses its epoch has a second training, which waits for the first.
    """
    if run.trained.data.parts == "epochs":
        return epoch_parts(run)
    return domain_parts(run)


def combine(run: Run) -> bool:
    """Write the result of a run with parts, if all have finished; returns whether it did."""
    kind = run.trained.data.parts
    if not kind:
        return False
    write = combine_epochs if kind == "epochs" else combine_domains
    return on_rank_zero(lambda: write(run, parts_of(run)))


def _part(run: Run, name: str, recipe: Recipe, **data: Any) -> Run:
    """One training of a run. The arm changes its recipe as it changes that of the run."""
    recipe = recipe.changed(data=data)
    return dataclasses.replace(run, recipe=recipe, folder=run.folder / name, part=name)


def _totals(results: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    listed = list(results)
    return {
        "minutes": round(sum(one["minutes"] for one in listed), 3),
        "updates": sum(one["updates"] for one in listed),
    }


# An epoch chosen on validation classes


def epoch_parts(run: Run) -> tuple[Run, ...]:
    """The first training, and the second once the first has finished."""
    choose = _part(run, CHOOSE, run.recipe, choose=False, unseen="val")
    if not choose.finished:
        return (choose,)
    epoch, _ = on_rank_zero(lambda: best(read_records(choose.folder / "metrics.jsonl")))
    recipe = run.recipe.changed(train={"epochs": epoch, "eval_epochs": epoch})
    return choose, _part(run, TRAIN, recipe, choose=False)


def combine_epochs(run: Run, parts: Sequence[Run]) -> bool:
    """Write the result of the second training, and the scores by which the first chose."""
    folders = {part.part: part.folder for part in parts if part.finished}
    if TRAIN not in folders:
        return False
    tried = read_records(folders[CHOOSE] / "metrics.jsonl")
    epoch, score = best(tried)
    results = {part: read_result(folder) for part, folder in folders.items()}
    write_records(run.folder / "metrics.jsonl", read_records(folders[TRAIN] / "metrics.jsonl"))
    evaluations = [(one["epoch"], one["hm"]) for one in tried if one["kind"] == "eval"]
    epochs, scores = zip(*evaluations, strict=True)
    arrays = read_figures(folders[TRAIN] / "figures.npz")
    curve = {name: array for name, array in arrays.items() if name.startswith("bias_")}
    figures = {
        "chosen_epoch": np.array(epoch),
        "choice_epochs": np.array(epochs),
        "choice_hm": np.array(scores, dtype=np.float64),
        **curve,
    }
    write_figures(run.folder / "figures.npz", figures)
    result = {
        "metrics": {**results[TRAIN]["metrics"], "val": score},
        **_totals(results.values()),
        "selected": f"epoch {epoch}, by classes of validation",
    }
    write_result(run.folder, result)  # last: it says that all files are there
    return True


def best(records: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """The epoch with the highest harmonic mean, the first of equals, and that score.

    >>> best([{"kind": "eval", "epoch": e, "hm": hm} for e, hm in ((50, 40.0), (100, 38.0))])
    (50, 40.0)
    """
    evaluated = [record for record in records if record["kind"] == "eval"]
    found = max(evaluated, key=lambda record: float(record["hm"]))
    return int(found["epoch"]), float(found["hm"])


# Every domain left out once


def targets_of(recipe: Recipe) -> tuple[str, ...]:
    """The domains that are left out one after the other; none where a run is one training."""
    data: Any = recipe.data
    if data.parts != "domains":
        return ()
    from batchformer.lab.tasks.domains import read_domains  # late: few runs have domains

    return read_domains(data.name, data.root, data.lists, data.memory).domains


def domain_parts(run: Run) -> tuple[Run, ...]:
    """One training for every target, or the run itself."""
    targets = targets_of(run.trained)  # of the data that this arm trains on
    return tuple(_part(run, name, run.recipe, target=name) for name in targets) or (run,)


def combine_domains(run: Run, parts: Sequence[Run]) -> bool:
    """Write the mean over all targets."""
    if not all(part.finished for part in parts):
        return False
    results = {part.part: read_result(part.folder) for part in parts}
    records = {part.part: read_records(part.folder / "metrics.jsonl") for part in parts}
    write_records(run.folder / "metrics.jsonl", mean_records(records))
    write_figures(run.folder / "figures.npz", joined_figures([part.folder for part in parts]))
    result = {
        "metrics": mean_scores({name: one["metrics"] for name, one in results.items()}),
        **_totals(results.values()),
        "selected": next(iter(results.values()))["selected"],
    }
    # Findings have no mean: each stays with its part.
    findings = {
        f"{name}/{kind}": values
        for name, one in results.items()
        for kind, values in findings_of(one).items()
    }
    if findings:
        result["findings"] = findings
    write_result(run.folder, result)  # last: it says that all files are there
    return True


def mean_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Scores of every target and their mean, from the metrics of each training.

    With SWAD these are of the averaged network, and those of the network without averaging follow.

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
    those of the network in training. Other kinds of records stay with their training.
    """
    by_step = [
        {(r["step"], r["kind"]): r for r in own if r["kind"] in ("train", "eval")}
        for own in records.values()
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
    """Arrays for figures: images of all targets one after the other, classes over all targets."""
    figures = [read_figures(folder / "figures.npz") for folder in folders]
    stacked = np.stack([one["per_class"] for one in figures])
    measured = ~np.isnan(stacked)
    total = np.where(measured, stacked, 0).sum(0)
    with np.errstate(invalid="ignore"):
        per_class = total / measured.sum(0)
    return {
        "per_class": per_class,
        "train_counts": np.rint(np.mean([one["train_counts"] for one in figures], 0)).astype(int),
        "correct": np.concatenate([one["correct"] for one in figures]),
        "classes": figures[0]["classes"],
        "confusion": np.sum([one["confusion"] for one in figures], 0),
    }


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
