"""Notes beside the tables: what metrics and arms are, and what runs lack, each said once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchformer.lab.config.methods import reweights, without_batchformer
from batchformer.lab.report.results.names import DESCRIPTIVE, metric_label
from batchformer.lab.report.results.runs import Run

MOST_NAMED = 3
"""Runs that a note names before it counts the others."""


def some_of(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    rest = len(names) - MOST_NAMED
    listed = ", ".join(names[:MOST_NAMED])
    return f"{listed} and {rest} more" if rest > 0 else listed


def remarks_on(runs: Sequence[Run]) -> tuple[str, ...]:
    """What is missing of runs that can be used; what several runs of a recipe lack is one line."""
    lacking: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for remark in run.remarks:
            lacking.setdefault((run.recipe_name, remark), []).append(run)
    lines = []
    for (recipe, remark), found in lacking.items():
        if len(found) == 1:
            lines.append(f"{found[0].name}: {remark}")
            continue
        problem, _, consequence = remark.partition("; ")
        # A run that has not finished may have nothing yet that it could lack.
        states = {run.state for run in found}
        count = sum(run.recipe_name == recipe and run.state in states for run in runs)
        line = f"{recipe}: {problem} in {len(found)} of {count} runs ({_named(found, recipe)})"
        lines.append(f"{line}: {consequence}" if consequence else line)
    return tuple(lines)


def unmeasured(metric: str, missing: Sequence[Run], count: int, name: str, side: str) -> str:
    """That seeds are not in a mean.

    Args:
        metric: that was not measured, or is not finite.
        missing: the runs without it.
        count: runs of which these are some.
        name: of the recipe or sweep.
        side: what has the mean, "arm" or "level".
    """
    if len(missing) == 1:
        run = missing[0]
        return (
            f"{run.name}: {metric!r} is {run.scores.get(metric)}, so this seed is not in the "
            f"mean; if it diverged, the mean flatters the {side}"
        )
    return (
        f"{name}: {metric!r} was not measured in {len(missing)} of {count} runs "
        f"({_named(missing, name)}), so these seeds are not in the means; if they diverged, the "
        f"means flatter the {side}s"
    )


def reweighting_note(recipe: Mapping[str, Any], runs: Iterable[Run]) -> list[str]:
    """That a method's deferred re-weighting never began, where no training was long enough."""
    epoch = (recipe.get("hyper") or {}).get("reweight_epoch")
    records = [record for run in runs for record in run.metrics if record["kind"] == "train"]
    reached = [record["epoch"] for record in records if "epoch" in record]
    if not reweights(recipe.get("method")) or epoch is None or not reached:
        return []
    if max(reached) >= epoch:
        return []
    return [
        f"The re-weighting of {recipe['method']} was to begin with epoch {epoch}, and no run came "
        f"to it"
    ]


def metric_notes(metrics: Iterable[str]) -> list[str]:
    """Which metrics only describe, and are not in percent."""
    describing = [metric_label(name) for name in metrics if name in DESCRIPTIVE]
    if not describing:
        return []
    return [
        f"Descriptions of features, on scales of their own and not in percent, where neither more "
        f"nor less is better: {', '.join(describing)}. They are not tested and not counted as "
        f"comparisons"
    ]


def arms_note(recipe: Mapping[str, Any], arms: Sequence[str]) -> list[str]:
    """What the arms are where BatchFormer takes no part in what is trained."""
    method, start = recipe.get("method"), recipe.get("start")
    if not without_batchformer(method):
        return []
    if start and "/" not in start:
        return [
            f"BatchFormer takes no part in {method} itself: an arm names the arm of {start} whose "
            f"network it begins with"
        ]
    if not {"baseline", "batchformer"} <= set(arms):
        return []
    beginning = f"all begin with the network of {start}" if start else "no runs are named by start"
    return [
        f"BatchFormer takes no part in {method}, and {beginning}: the arms baseline and "
        f"batchformer are the same training"
    ]


def _named(runs: Sequence[Run], name: str) -> str:
    """Arm and seed of some runs, in a sweep after their level."""
    return some_of(
        [
            f"{run.recipe_name.removeprefix(name).lstrip('/')} {run.arm} seed{run.seed}".lstrip()
            for run in runs
        ]
    )
