"""Loads the trained method of a run from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import explain_mismatch
from batchformer.lab.engine.method import Method
from batchformer.lab.runs.build import RecordedSizes, build, load_task
from batchformer.lab.runs.folder import read_config, read_figures, recipe_from_json
from batchformer.lab.runs.source_runs import Weights, final_state
from batchformer.lab.tasks.base import Task


def restore(
    folder: Path, device: torch.device, root: str | None = None
) -> tuple[Method, Task, dict[str, Any]]:
    """The trained method of a run folder, its task and its configuration.

    For a run with SWAD it is the averaged network. `root` is the folder of the data, if it has
    moved since the training.
    """
    config, recipe, seed, state = _open(folder)
    if root is not None:
        recipe = recipe.changed(data={"root": root})
    task = load_task(recipe.data, device).seeded(seed)
    _require_same_draw(folder, config.get("data", {}), task)
    _require_same_classes(folder, task)
    method = build(recipe, seed, task)
    with explain_mismatch(folder):
        method.load_state_dict(dict(state))
    method.to(device).before_evaluation()  # checkpoints do not hold what this prepares
    return method.eval(), task, config


def restore_deployed(
    folder: Path, device: torch.device, root: str | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a run as it is exported, and the run's configuration.

    It is built from the facts in ``config.json``, without the data. Only compositional and
    generalized zero-shot methods need vectors of the data, so for them it is read.
    """
    config, recipe, seed, state = _open(folder)
    if "built_with" not in config:
        method, _, config = restore(folder, device, root)
        return method.deployed(), config
    method = build(recipe, seed, RecordedSizes.from_record(config["built_with"]))
    with explain_mismatch(folder):
        method.load_state_dict(dict(state))
    return method.to(device).eval().deployed(), config


def _require_same_draw(folder: Path, facts: Mapping[str, Any], task: Task) -> None:
    """Refuse data whose drawn test images differ from those of the training."""
    if "split_seed" not in facts:
        return
    before, now = facts["split_sha256"], task.facts()["split_sha256"]
    if before != now:
        raise ValueError(
            f"{folder} was trained on other images: its test images were drawn from one tree "
            f"(split {before[:12]}), which has other images now (split {now[:12]}). Some of the "
            "images to be scored may have been trained on. Put the same images back, or name the "
            "folder that has them by --data.root."
        )


def _require_same_classes(folder: Path, task: Task) -> None:
    """Refuse data whose classes have other names or another order than in training."""
    now, path = getattr(getattr(task, "data", None), "classes", None), folder / "figures.npz"
    if now is None or not path.exists():
        return
    try:
        arrays = read_figures(path)
    except ValueError:
        return  # a damaged file does not say which classes there were
    before = arrays["classes"].tolist() if "classes" in arrays else [*now]
    if before != [*now]:
        pairs = zip_longest(before, now, fillvalue="none")
        number, (old, new) = next((i, pair) for i, pair in enumerate(pairs) if len({*pair}) > 1)
        raise ValueError(
            f"{folder} was trained on other classes: number {number} was {old!r} and is {new!r} "
            "here. Name the folder that has the same classes by --data.root."
        )


def _open(folder: Path) -> tuple[dict[str, Any], Recipe, int, Weights]:
    """The configuration of a run, the recipe that was trained, its seed, and the final state."""
    config = read_config(folder)
    if config is None:
        raise FileNotFoundError(
            f"{folder} is not a run folder: it holds no config.json. Name the folder of one run, "
            "such as runs/demo/batchformer/seed0."
        )
    recipe, seed = _read(folder, config)
    state = final_state(folder)
    if state is None:
        if found := sorted(path.parent.name for path in folder.glob("*/config.json")):
            raise ValueError(
                f"{folder} holds several trainings: {', '.join(found)}. Name the folder of one of "
                "them."
            )
        raise FileNotFoundError(
            f"{folder} holds no checkpoint to load. Put an intact one back, or train the run again "
            "in another folder by --runs."
        )
    return config, recipe, seed, state


def _read(folder: Path, config: Mapping[str, Any]) -> tuple[Recipe, int]:
    """The recipe and the seed in a run's configuration."""
    seed = config.get("seed")
    try:
        if type(seed) is not int:
            raise ValueError(f"its seed is {seed!r}, not a whole number")
        return recipe_from_json(config["trained"]), seed
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / 'config.json'} holds no run of this version of batchformer: {error}"
        ) from error
