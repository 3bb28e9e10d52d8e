"""Notes beside the tables: what metrics and arms are, and what runs lack. Each is said once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchformer.insight.figures.influence import change_of_a_loss
from batchformer.insight.figures.text import in_full
from batchformer.lab.config.arms import BASELINE, MAIN
from batchformer.lab.config.methods import reweights, without_batchformer
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import DESCRIPTIVE, VALIDATION, metric_label
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.plug.findings import NEXT_TO_NOTHING

MOST_NAMED = 3  # runs that a note names before it counts the others
SHRUNK = 1.0  # weight decay explains small gradients if it can have left less than 1/e of a weight


# Runs that are missing or lack something.


def left_out(runs: Iterable[RecordedRun]) -> tuple[str, ...]:
    """A line for each run that is damaged or has not finished."""
    lines = []
    for run in runs:
        if run.state == "damaged":
            lines.append(f"{run.name} is damaged: {run.damage} ({run.folder})")
        elif run.state == "unfinished":
            last = max((int(record["step"]) for record in run.metrics), default=0)
            lines.append(f"{run.name} has not finished: last record at update {last}")
    return tuple(lines)


def remarks_on(runs: Sequence[RecordedRun]) -> tuple[str, ...]:
    """What usable runs lack; a remark that several runs of a recipe share is one line."""
    lacking: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        for remark in run.remarks:
            lacking.setdefault((run.recipe_name, remark), []).append(run)
    lines = []
    for (recipe, remark), found in lacking.items():
        if len(found) == 1:
            lines.append(f"{found[0].name}: {remark}")
            continue
        problem, _, consequence = remark.partition("; ")
        # Count only runs in the same states: an unfinished run may have nothing yet to lack.
        states = {run.state for run in found}
        count = sum(run.recipe_name == recipe and run.state in states for run in runs)
        line = f"{recipe}: {problem} in {len(found)} of {count} runs ({_named(found, recipe)})"
        lines.append(f"{line}: {consequence}" if consequence else line)
    return tuple(lines)


def unmeasured_notes(
    runs: Sequence[RecordedRun], metrics: Iterable[str], name: str, side: str
) -> list[str]:
    """Metrics that some runs did not measure: leaving out a diverged seed flatters a mean.

    ``name`` is that of the recipe or sweep. ``side`` says what a mean is of: "arm" or "level".
    """
    lines = []
    for metric in metrics:
        missing = [run for run in runs if run.measured(metric) is None]
        if len(missing) == 1:
            lines.append(
                f"{missing[0].name}: {metric!r} is {missing[0].scores.get(metric)}, so this seed "
                f"is not in the mean; if it diverged, the mean flatters the {side}"
            )
        elif missing:
            lines.append(
                f"{name}: {metric!r} was not measured in {len(missing)} of {len(runs)} runs "
                f"({_named(missing, name)}), so these seeds are not in the means; if they "
                f"diverged, the means flatter the {side}s"
            )
    return lines


def _named(runs: Sequence[RecordedRun], name: str) -> str:
    """Arm and seed of the first runs; in a sweep, after the level."""
    return shorten(
        [
            f"{run.recipe_name.removeprefix(name).lstrip('/')} {run.arm} seed{run.seed}".lstrip()
            for run in runs
        ],
        MOST_NAMED,
    )


# Data, metrics and arms.


def data_notes(runs: Iterable[RecordedRun]) -> list[str]:
    """Remarks on the data that the runs recorded, each once."""
    return list(dict.fromkeys(str(line) for run in runs for line in run.data.get("remarks", ())))


def shots_note(recipe: Mapping[str, Any]) -> list[str]:
    """What Many, Medium and Few mean, if they are not the paper's."""
    if (recipe.get("data") or {}).get("shots") != "thirds":
        return []
    return [
        "Many, Medium and Few are thirds of the classes here, in the order of their training "
        "images; the paper's limits are 100 and 20 images"
    ]


def metric_notes(metrics: Iterable[str]) -> list[str]:
    """Which metrics are not tested, and why."""
    why = {
        "Descriptions of features, on scales of their own and not in percent, where neither more "
        "nor less is better": DESCRIPTIVE,
        "Scores of validation data, which are there to choose what is reported": VALIDATION,
    }
    shown = list(metrics)
    return [
        f"{words}: {', '.join(named)}. They are not tested and not counted as comparisons"
        for words, kind in why.items()
        if (named := [metric_label(name) for name in shown if name in kind])
    ]


def selection_note(recipe: Mapping[str, Any]) -> list[str]:
    """A note if the test set itself chose the evaluation that is reported."""
    if (recipe.get("train") or {}).get("select_on") != "test":
        return []
    return [
        "The evaluation of a run that is best on the test set is reported (train.select-on test): "
        "its scores are too high, and a difference may come from this choice"
    ]


def arms_note(recipe: Mapping[str, Any], arms: Sequence[str]) -> list[str]:
    """What the arms mean for a method that is trained without BatchFormer."""
    method, start = recipe.get("method"), recipe.get("start")
    if not without_batchformer(method):
        return []
    if start and "/" not in start:
        return [
            f"BatchFormer takes no part in {method} itself: an arm names the arm of {start} whose "
            f"network it begins with"
        ]
    if not {BASELINE, MAIN} <= set(arms):
        return []
    beginning = f"all begin with the network of {start}" if start else "no runs are named by start"
    return [
        f"BatchFormer takes no part in {method}, and {beginning}: the arms {BASELINE} and "
        f"{MAIN} are the same training"
    ]


# What never began in training, or was undone by it.


def reweighting_note(recipe: Mapping[str, Any], runs: Iterable[RecordedRun]) -> list[str]:
    """A note if a method's deferred re-weighting never began, because all runs were too short."""
    epoch = (recipe.get("hyper") or {}).get("reweight_epoch")
    records = [record for run in runs for record in run.metrics if record["kind"] == "train"]
    reached = [record["epoch"] for record in records if "epoch" in record]
    if not reweights(recipe.get("method")) or epoch is None or not reached:
        return []
    if max(reached) >= epoch:
        return []
    return [
        f"The re-weighting of {recipe['method']} begins with epoch {epoch}, which no run reached"
    ]


def inactive_encoder_notes(group: RunGroup) -> list[str]:
    """Arms in which samples hardly influence one another any more at the end of training.

    Small gradients alone may come from a young classifier or a small loss. A note therefore needs a
    training in which weight decay can have shrunk the encoder away.
    """
    notes = []
    for arm in group.arms:
        runs = group.of(arm)
        # In a control of this kind no sample is meant to attend to another.
        control = any((run.trained.get("module") or {}).get("attend") == "self" for run in runs)
        change = None if control else change_of_a_loss(group, arm)
        decayed = decay_of_encoder(runs) >= SHRUNK
        if change is not None and change < NEXT_TO_NOTHING and decayed:
            notes.append(
                f"At the end of training samples hardly influence one another in {arm} of "
                f"{group.name}: if the feature of one other sample moved as far as two samples lie "
                f"apart, a loss would change by no more than about {in_full(change)}, on average "
                f"over pairs. Weight decay may have shrunk the encoder to nothing "
                f"(optim.module-weight-decay)"
            )
    return notes


def decay_of_encoder(runs: Iterable[RecordedRun]) -> float:
    """An upper bound of ``x``, if weight decay multiplies an unused weight by ``exp(-x)``.

    A falling learning rate gives less. It is 0 for LARS, whose rates are relative to the weights,
    and infinite for Adam with decay: Adam normalises gradients, of which decay is a part, so it
    moves an unused weight by the learning rate in every update.
    """
    return max((_decay(run.trained, run.result or {}) for run in runs), default=0.0)


def _decay(trained: Mapping[str, Any], result: Mapping[str, Any]) -> float:
    optim, module = trained.get("optim") or {}, trained.get("module") or {}
    if optim.get("name") == "lars":
        return 0.0
    own = optim.get("module_weight_decay")
    decay = float((optim.get("weight_decay") or 0.0) if own is None else own)
    rate = float(optim.get("lr") or 0.0) * float(module.get("lr_factor", 1.0))
    # SGD's momentum accumulates the decay that is added to a gradient.
    repeated = 1 / (1 - float(optim.get("momentum", 0.0))) if optim.get("name") == "sgd" else 1.0
    exponent = rate * decay * repeated * float(result.get("updates") or 0)
    return math.inf if exponent and optim.get("name") == "adam" else exponent
