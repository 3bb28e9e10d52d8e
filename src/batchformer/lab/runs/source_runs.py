"""Networks that a run takes from other runs: its start and its teacher."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from batchformer.lab.config.arms import ARMS
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import explain_mismatch, load_newest
from batchformer.lab.engine.state import BEST, SWAD
from batchformer.lab.models.weights import Place
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.folder import read_json, recipe_from_json

Weights = Mapping[str, Tensor]


def require_known(role: str, name: str, root: Path) -> None:
    """Refuse a name that no recipe and no arm has, and suggest similar ones."""
    recipe, _, arm = name.partition("/")
    where = f"Runs are named RECIPE or RECIPE/ARM, and looked for in {root}."
    if not (root / recipe).is_dir():
        try:
            find_recipe(recipe)
        except ValueError as error:
            raise ValueError(f"--{role} {name}: {error} {where}") from error
    if arm and arm not in ARMS and not (root / recipe / arm).is_dir():
        near = difflib.get_close_matches(arm, ARMS, 1)
        hint = f" Did you mean {recipe}/{near[0]}?" if near else ""
        raise ValueError(
            f"--{role} {name}: there is no arm {arm!r}.{hint} {where} Arms: {', '.join(ARMS)}."
        )


def own_source_message(role: str, recipe: Recipe) -> str:
    """What to do if a run would need its own network, as runs of one name share one folder."""
    how = "start from itself" if role == "start" else "be its own teacher"
    words = (
        f"would {how}: name another recipe or arm by --{role}. A folder of runs holds one run of a "
        "recipe, arm and seed, whatever its method"
    )
    others = (make() for name, make in RECIPES.items() if name != recipe.name)
    alike = (o for o in others if o.method == recipe.method and type(o.data) is type(recipe.data))
    if other := next(alike, None):
        words += (
            f". For a second training use another recipe, with the same --{role} and --runs, and "
            f"this --data and --model: batchformer compare {other.name}"
        )
    if role == "start":
        words += (
            ". Or export one trained network, batchformer export RUN --to FILE.pth, and start "
            "from that file in another folder: --weights FILE.pth and --runs OTHER, without --start"
        )
    return f"{words}."


def require_finished(folder: Path, split: str | None, part: str = "") -> None:
    """Refuse a source that is missing, not finished, or was trained on another training set.

    Args:
        split: hash of what this run trains on; None if the source may have other data.
        part: name of one training of a run with parts.
    """
    whole = folder.parent if part else folder
    root, (recipe, arm, seed) = whole.parents[2], whole.parts[-3:]
    if not (folder / "result.json").exists():
        raise FileNotFoundError(
            f"This run needs the network of {recipe}/{arm} {seed}, and {folder} holds no finished "
            f"run. Train it first: batchformer train {recipe} --arm {arm} "
            f"--seed {seed.removeprefix('seed')} --runs {root}, or, for N seeds, batchformer "
            f"compare {recipe} --arms {arm} --seeds N --runs {root}"
        )
    found = training_hash(read_json(folder / "config.json", "data")["data"])
    if split is not None and found != split:
        raise ValueError(
            f"{folder} was trained on another training set (split {found[:12]}..., this run has "
            f"{split[:12]}...): set the same --data, or train it again in another folder of runs."
        )


def training_hash(facts: Mapping[str, Any]) -> str:
    """Hash of the training set, or of the whole split where it has no hash of its own.

    For a run on some classes of a training set, it is the hash of the set with all classes.
    """
    keys = ("part_of_sha256", "train_sha256", "split_sha256")
    return str(next((facts[key] for key in keys if facts.get(key)), None))


def trained_network(folder: Path) -> Weights:
    """The network's weights of a finished run, without BatchFormer."""
    state = final_state(folder)
    if state is None:
        if parts := sorted(path.parent.name for path in folder.glob("*/config.json")):
            raise ValueError(
                f"{folder} holds one training for each target, {', '.join(parts)}. A run that "
                "starts from them has to leave out each target too. Set --data.target each."
            )
        raise FileNotFoundError(
            f"{folder} is finished but holds no checkpoint to start from. Remove the folder and "
            "train it again."
        )
    from batchformer.plug.export import export  # late: few runs start from others

    prefix = "network."
    return export({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})


def trained_stride(folder: Path) -> Place:
    """Where the bottlenecks of a run's network stride, if it has any."""
    trained = read_json(folder / "config.json", "trained")["trained"]
    return "1x1" if recipe_from_json(trained).stride == "1x1" else "3x3"


def final_state(folder: Path) -> Weights | None:
    """The state of a run's method as it is scored; None if the folder holds no checkpoint.

    With SWAD that is the averaged network. Otherwise it is the best evaluation's network if the
    best one is reported, else the last one: the running mean of the weights if there is one.
    """
    for name in (SWAD, BEST):
        chosen = load_newest(folder / name)
        if chosen is not None:
            with explain_mismatch(folder):
                return dict(chosen["method"])
    checkpoint = load_newest(folder / "checkpoints")
    if checkpoint is None:
        return None
    with explain_mismatch(folder):
        average = checkpoint["average"]
        if average is None:
            return dict(checkpoint["method"])
        return {k.removeprefix("module."): v for k, v in average.items() if k != "n_averaged"}
