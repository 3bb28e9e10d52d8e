"""What tests of runs share: short recipes, and what a run's folder holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.recipes.small import demo


def short(recipe: Recipe | None = None, **train: Any) -> Recipe:
    """The demonstration, or another recipe, in six updates without figures, or as `train` says."""
    recipe = recipe or demo()
    options = {"updates": 6, "eval_every": 3, "log_every": 5, "figures": False, **train}
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **options))


def config_of(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def metrics_of(folder: Path) -> dict[str, float]:
    """The scores of a finished run."""
    metrics: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return metrics


def contents(folder: Path) -> tuple[object, dict[str, bytes], dict[str, bytes]]:
    """Scores, arrays of figures, and final weights of a run, to the bit."""
    with np.load(folder / "figures.npz") as arrays:
        figures = {name: arrays[name].tobytes() for name in arrays.files}
    state = load_newest(folder / "checkpoints")
    assert state is not None
    weights = {name: value.numpy().tobytes() for name, value in state["method"].items()}
    return metrics_of(folder), figures, weights


class StopsAt:
    """Batches up to a step, and then an error."""

    def __init__(self, feed: Any, step: int) -> None:
        self.feed, self.step, self.per_epoch = feed, step, feed.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of a step."""
        if step == self.step:
            raise OSError("the disk is gone")
        batch: dict[str, Any] = self.feed.batch(step)
        return batch

    def close(self) -> None:
        """As of a feed that has workers."""
        close(self.feed)
