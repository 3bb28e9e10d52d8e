"""Networks that other runs have trained."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from batchformer.lab.config.arms import ARMS
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.loop import BEST, explain_mismatch
from batchformer.lab.models.weights import Place
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.folder import read_json, recipe_from_json

Weights = Mapping[str, Tensor]


def require_known(role: str, name: str, root: Path) -> None:
    """Refuse a name that no recipe and no arm has, and say which are near.

    Args:
        role: the setting that names it, ``start`` or ``teacher``.
        name: ``RECIPE`` or ``RECIPE/ARM``; what was trained under other names passes.
        root: folder of all runs.
    """
    recipe, _, arm = name.partition("/")
    of_runs = f"Runs are named RECIPE or RECIPE/ARM, and looked for in {root}."
    if not (root / recipe).is_dir():
        try:
            find_recipe(recipe)
        except ValueError as error:
            raise ValueError(f"--{role} {name}: {error} {of_runs}") from error
    if arm and arm not in ARMS and not (root / recipe / arm).is_dir():
        near = difflib.get_close_matches(arm, ARMS, 1)
        hint = f" Did you mean {recipe}/{near[0]}?" if near else ""
        raise ValueError(
            f"--{role} {name}: there is no arm {arm!r}.{hint} {of_runs} Arms: {', '.join(ARMS)}."
        )


def instead_of_itself(role: str, recipe: Recipe) -> str:
    """What to do where a run would need its own network: runs of one name share one folder.

    Args:
        role: the setting that names the run, ``start`` or ``teacher``.
        recipe: what names it.
    """
    how = "start from itself" if role == "start" else "be its own teacher"
    words = (
        f"would {how}: name another recipe or arm by --{role}. A folder of runs holds one run of a "
        "recipe, arm and seed, whatever its method"
    )
    others = (make() for name, make in RECIPES.items() if name != recipe.name)
    alike = (o for o in others if o.method == recipe.method and type(o.data) is type(recipe.data))
    if other := next(alike, None):
        words += (
            f", so that a second training takes another recipe, with the same --{role} and --runs, "
            f"and this --data and --model: batchformer compare {other.name}"
        )
    if role == "start":
        words += (
            ". Or write one trained network to a file, batchformer export RUN --to FILE.pth, and "
            "begin with it in another folder: --weights FILE.pth and --runs OTHER, without --start"
        )
    return f"{words}."


def require_finished(folder: Path, split: str | None, part: str = "") -> None:
    """Refuse to start from a run that is not there, not finished, or of another training set.

    Args:
        folder: ``RUNS/RECIPE/ARM/seedN``, and in it a folder of the part if there is one.
        split: hash of what this run trains on; None if it may be something else.
        part: name of one of the trainings that the run consists of.
    """
    whole = folder.parent if part else folder
    root, (recipe, arm, seed) = whole.parents[2], whole.parts[-3:]
    if not (folder / "result.json").exists():
        raise FileNotFoundError(
            f"This run needs the network of {recipe}/{arm} {seed}, and {folder} holds no finished "
            f"run. Train it first: batchformer train {recipe} --arm {arm} "
            f"--seed {seed.removeprefix('seed')} --runs {root}"
        )
    found = training_hash(read_json(folder / "config.json", "data")["data"])
    if split is not None and found != split:
        raise ValueError(
            f"{folder} was trained on another training set (split {found[:12]}..., this run has "
            f"{split[:12]}...): set the same --data, or train it again in another folder of runs."
        )


def training_hash(facts: Mapping[str, Any]) -> str:
    """Hash of what is trained on; of the whole split where that is not told apart."""
    return str(facts.get("train_sha256") or facts.get("split_sha256"))


def trained_network(folder: Path) -> Weights:
    """The network's weights of a finished run, without BatchFormer."""
    whole = final_state(folder)
    parts = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if whole is None and parts:
        raise ValueError(
            f"{folder} holds one training for each target, {', '.join(parts)}: what starts from "
            f"them leaves out each target as well. Set --data.target each."
        )
    if whole is None:
        raise FileNotFoundError(
            f"{folder} is finished but holds no checkpoint to start from; remove the folder and "
            f"train it again."
        )
    return {
        key.removeprefix("network."): value
        for key, value in whole.items()
        if key.startswith("network.")
    }


def trained_stride(folder: Path) -> Place:
    """Where the bottlenecks of a run's network stride, if it has any."""
    recorded = read_json(folder / "config.json", "trained")["trained"]
    return "1x1" if recipe_from_json(recorded).stride == "1x1" else "3x3"


def final_state(folder: Path) -> Weights | None:
    """The state of a run's method as it is scored: with SWAD, its averaged network; the best on
    validation data where that is what is reported; else the last.

    None if the folder holds no checkpoint.
    """
    for kept in ("swad", BEST):
        chosen = load_newest(folder / kept)
        if chosen is not None:
            with explain_mismatch(folder):
                weights: Weights = chosen["method"]
            return weights
    state = load_newest(folder / "checkpoints")
    if state is None:
        return None
    with explain_mismatch(folder):
        whole = trained_state(state)
    if not any(name.startswith("inner.") for name in whole):
        return whole
    return {k.removeprefix("inner."): v for k, v in whole.items() if k.startswith("inner.")}


def trained_state(checkpoint: Mapping[str, Any]) -> Weights:
    """A method's state as it is evaluated: the running mean of the weights if there is one."""
    average = checkpoint["average"]
    if average is None:
        weights: Weights = checkpoint["method"]
        return weights
    return {k.removeprefix("module."): v for k, v in average.items() if k != "n_averaged"}
