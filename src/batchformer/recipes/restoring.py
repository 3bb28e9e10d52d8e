"""A trained method, from the folder of its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from batchformer.engine.fit import of_this_training
from batchformer.engine.method import Method
from batchformer.recipes.building import build, load_task
from batchformer.recipes.folder import recorded
from batchformer.recipes.plain import from_plain
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.start import final_state
from batchformer.tasks.load import Task


def restore(folder: Path, device: torch.device) -> tuple[Method, Task, dict[str, Any]]:
    """The trained method of a run folder, its task and its configuration.

    Of a run with SWAD it is the averaged network.
    """
    config = recorded(folder)
    if config is None:
        raise FileNotFoundError(f"{folder} is not a run folder: it holds no config.json.")
    recipe, seed = _read(folder, config)
    state = final_state(folder)
    if state is None:
        if found := sorted(path.parent.name for path in folder.glob("*/config.json")):
            raise ValueError(
                f"{folder} holds several trainings: {', '.join(found)}. Name the folder of one of "
                "them."
            )
        raise FileNotFoundError(f"{folder} holds no checkpoint to load.")
    recipe = dataclasses.replace(recipe, hyper=dataclasses.replace(recipe.hyper, swad=False))
    task = load_task(recipe.data, device).seeded(seed)
    method = build(recipe, seed, task)
    with of_this_training(folder):
        method.load_state_dict(dict(state))
    method.to(device).before_evaluation()  # a checkpoint is written before what it prepares
    return method.eval(), task, config


def _read(folder: Path, config: Mapping[str, Any]) -> tuple[Recipe, int]:
    """The recipe and the seed that a run's folder records.

    Raises:
        ValueError: this version has no such recipe.
    """
    seed = config.get("seed")
    try:
        if type(seed) is not int:
            raise ValueError(f"its seed is {seed!r}, no whole number")
        return from_plain(config["trained"]), seed
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / 'config.json'} holds no run of this version of batchformer: {error}"
        ) from error
