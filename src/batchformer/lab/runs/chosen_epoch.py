"""Runs whose epoch is chosen on classes of validation: trained twice, once without these classes.

``seedN/choose`` leaves out the classes of validation and never sees those of the test;
``seedN/train`` trains on all seen classes for as many epochs as were best in the first, and is
scored at its end: nothing is chosen by the test.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import write_atomically
from batchformer.lab.engine.distributed.rank_zero import first_says
from batchformer.lab.engine.log import read_records
from batchformer.lab.runs.folder import read_result, write_figures, write_result
from batchformer.lab.runs.run import Run

CHOOSE, TRAIN = "choose", "train"


def parts_of(run: Run) -> tuple[Run, ...]:
    """The trainings of a run that can be trained by now: the second has to wait for the first."""
    choose = _part(run, CHOOSE, run.recipe, choose=False, unseen="val")
    if not choose.finished:
        return (choose,)
    epoch, _ = first_says(lambda: best(read_records(choose.folder / "metrics.jsonl")))
    length = dataclasses.replace(run.recipe.train, epochs=epoch, eval_epochs=epoch)
    recipe = dataclasses.replace(run.recipe, train=length)
    return choose, _part(run, TRAIN, recipe, choose=False)


def _part(run: Run, name: str, recipe: Recipe, **data: Any) -> Run:
    recipe = dataclasses.replace(recipe, data=recipe.data_with(**data))
    return dataclasses.replace(run, recipe=recipe, folder=run.folder / name, part=name)


def combine(run: Run, parts: Sequence[Run]) -> bool:
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
