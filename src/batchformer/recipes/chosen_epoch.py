"""Runs whose epoch is chosen on classes of validation: trained twice, once without these classes.

``seedN/choose`` leaves out the classes of validation and never sees those of the test;
``seedN/train`` trains on all seen classes. The result is the evaluation of the second at the epoch
that was best in the first, so nothing is chosen by the test.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchformer.engine.checkpoint import write_atomically
from batchformer.engine.log import read_records
from batchformer.recipes.folder import write_figures, write_json
from batchformer.recipes.run import Run

CHOOSE, TRAIN = "choose", "train"


def parts_of(run: Run) -> tuple[Run, ...]:
    """The two trainings of a run."""
    changes: dict[str, dict[str, Any]] = {
        CHOOSE: {"choose": False, "unseen": "val"},
        TRAIN: {"choose": False},
    }
    return tuple(
        dataclasses.replace(
            run,
            recipe=dataclasses.replace(run.recipe, data=run.recipe.data_with(**change)),
            folder=run.folder / part,
            part=part,
        )
        for part, change in changes.items()
    )


def combine(run: Run, parts: Sequence[Run]) -> bool:
    """Write the result of a run of two trainings, if both have finished.

    Returns:
        Whether it was written.
    """
    if not all(part.finished for part in parts):
        return False
    by_part = {part.part: part.folder for part in parts}
    records = {part: read_records(by_part[part] / "metrics.jsonl") for part in by_part}
    epoch, metrics = chosen(records[CHOOSE], records[TRAIN])
    results = [json.loads((folder / "result.json").read_text()) for folder in by_part.values()]
    lines = (json.dumps(record) for record in records[TRAIN])
    write_atomically(run.folder / "metrics.jsonl", ("\n".join(lines) + "\n").encode())
    write_figures(run.folder / "figures.npz", {"chosen_epoch": np.array(epoch)})
    result = {
        "metrics": metrics,
        "minutes": round(sum(one["minutes"] for one in results), 3),
        "updates": sum(one["updates"] for one in results),
        "selected": f"epoch {epoch}, by classes of validation",
    }
    write_json(run.folder / "result.json", result)  # last: it says that all is there
    return True


def chosen(
    choosing: Sequence[Mapping[str, Any]], training: Sequence[Mapping[str, Any]]
) -> tuple[int, dict[str, float]]:
    """The best epoch without the classes of validation, and what the other training had there.

    Args:
        choosing: records of the training without the classes of validation.
        training: records of the training on all seen classes.

    >>> def evaluated(*scores):
    ...     return [{"kind": "eval", "epoch": epoch, "hm": hm} for epoch, hm in scores]
    >>> chosen(evaluated((50, 40.0), (100, 38.0)), evaluated((50, 51.0), (100, 60.0)))
    (50, {'hm': 51.0, 'val': 40.0})
    """
    evaluated = [record for record in choosing if record["kind"] == "eval"]
    best = max(evaluated, key=lambda record: float(record["hm"]))  # the first of equals
    found = [r for r in training if r["kind"] == "eval" and r["epoch"] == best["epoch"]]
    if not found:
        raise ValueError(
            f"epoch {best['epoch']} was best on classes of validation, but the training on all "
            "seen classes was not evaluated there; let both have the same train.epochs and "
            "train.eval-epochs"
        )
    scores = {k: v for k, v in found[-1].items() if k not in ("kind", "epoch", "step", "time")}
    return int(best["epoch"]), {**scores, "val": float(best["hm"])}
