"""Whether BatchFormer still acts when training has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batchformer.insight.figures.influence import NEXT_TO_NOTHING, change_of_a_loss, in_full
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.runs import Run

CONTROLS = ("batchformer_self", "class_context_self")
"""The arms in which no sample is meant to reach another."""
SHRUNK = 1.0
"""Where decay could have left less than 1/e of a weight, small gradients are put down to it."""


def acting_notes(group: RunGroup) -> list[str]:
    """Arms in which samples hardly reach one another any more, by the networks looked at.

    Small gradients alone may be those of a young classifier or of a small loss: a note needs a
    training in which weight decay can have taken the encoder away.
    """
    notes = []
    for arm in group.arms:
        change = None if arm in CONTROLS else change_of_a_loss(group, arm)
        decayed = decay_of_encoder(group.of(arm)) >= SHRUNK
        if change is not None and change < NEXT_TO_NOTHING and decayed:
            notes.append(
                f"At the end of training samples hardly reach one another in {arm} of "
                f"{group.name}: if the feature of one other sample moved as far as two samples lie "
                f"apart, a loss would change by no more than about {in_full(change)}, on average "
                f"over pairs. Weight decay may have taken the encoder away "
                f"(optim.module-weight-decay)"
            )
    return notes


def decay_of_encoder(runs: Iterable[Run]) -> float:
    """The most that decay takes of a weight without gradient, as the exponent of e.

    Rates that fall take less. With LARS, whose rates are relative to the weights, it is not known
    and 0.
    """
    return max((_decay(run.recipe, run.result or {}) for run in runs), default=0.0)


def _decay(recipe: Mapping[str, Any], result: Mapping[str, Any]) -> float:
    optim, module = recipe.get("optim") or {}, recipe.get("module") or {}
    if optim.get("name") == "lars":
        return 0.0
    own = optim.get("module_weight_decay")
    decay = float((optim.get("weight_decay") or 0.0) if own is None else own)
    rate = float(optim.get("lr") or 0.0) * float(module.get("lr_factor", 1.0))
    # SGD's momentum repeats what decay adds to a gradient; Adam's would divide it away.
    repeated = 1 / (1 - float(optim.get("momentum", 0.0))) if optim.get("name") == "sgd" else 1.0
    return rate * decay * repeated * float(result.get("updates") or 0)
