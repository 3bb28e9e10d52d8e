"""The method of a recipe, the task it is trained on, and the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import nn

from batchformer.lab.config.consistency import OF_BOXES
from batchformer.lab.config.data import DataConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.method import Method
from batchformer.lab.methods import build_method
from batchformer.lab.models.weights import fit_weights
from batchformer.lab.runs.networks import build_network, take_weights
from batchformer.lab.runs.start import Weights
from batchformer.lab.tasks.image_files import ImageFileTask
from batchformer.lab.tasks.load import Task, load
from batchformer.lab.tasks.long_tailed import LongTailedTask
from batchformer.nn.exchange import ranks
from batchformer.nn.randomness import drawing


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; ``auto`` takes cuda, then mps (not on several ranks), then cpu."""
    if ranks() > 1 and name in ("auto", "cuda"):
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())  # each rank has its own
        name = "cpu" if name == "auto" else name
    if name != "auto":
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ValueError(
                f"There is no device {name!r}; there are auto, cpu, cuda, cuda:1, mps ..."
            ) from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"--device {name}: torch finds no CUDA device here; set --device cpu.")
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@lru_cache(maxsize=2)
def load_task(config: DataConfig, device: torch.device) -> Task:
    """The task's data, read once for all the runs of a comparison."""
    return load(config, device)


class Sizes(Protocol):
    """What a method is built with: the part of a task that needs no images."""

    @property
    def num_classes(self) -> int: ...

    @property
    def method_options(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class RecordedSizes:
    """The same from the record of a run, so that its network can be built without the data.

    Args:
        num_classes: K.
        method_options: what the method was told of the data.
    """

    num_classes: int
    method_options: dict[str, Any]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RecordedSizes:
        """From what :func:`recordable` gave."""
        options = {name: value for name, value in record.items() if name != "num_classes"}
        if "class_counts" in options:
            options["class_counts"] = torch.tensor(options["class_counts"])
        return cls(int(record["num_classes"]), options)


def recordable(task: Sizes) -> dict[str, Any] | None:
    """What a method of this task is built with, as JSON holds it.

    None where that is more than names and numbers of classes: compositional and generalized
    zero-shot methods are built with vectors of the data.
    """
    options = task.method_options
    if not options.keys() <= {"class_counts", "classes", "groups"}:
        return None
    counts = options.get("class_counts")
    plain = options if counts is None else {**options, "class_counts": counts.tolist()}
    return {"num_classes": task.num_classes, **plain}


def build(
    recipe: Recipe,
    seed: int,
    task: Sizes,
    start: Weights | None = None,
    teacher: Weights | None = None,
    given: Callable[[nn.Module], None] | None = None,
) -> Method:
    """The method of a recipe with the initial weights of a seed.

    Args:
        recipe: what to build.
        seed: of the weights.
        task: has the classes.
        start: the network's weights, by a run that this one starts from.
        teacher: the teacher's weights; without them a teacher is random until it is loaded.
        given: gives the network the weights that the recipe names; without it they stay random.
    """
    options = dict(task.method_options)
    if isinstance(task, LongTailedTask | ImageFileTask):
        if recipe.method == "knn":
            options["bank"] = task.bank(seed, recipe.train.workers)
        if recipe.method == "linear_probe":
            options["training_features"] = task.bank(seed, recipe.train.workers).features
    elif recipe.method == "knn":
        options["bank"] = None  # without images there are no neighbours, but there is a network
    if recipe.model:
        with drawing(seed, "weights"):
            network = options["network"] = build_network(recipe, task.num_classes)
        if start is not None and recipe.method in OF_BOXES:
            fit_weights(network, start, recipe.start)  # a detector has no use for a classifier
        elif start is not None:
            take_weights(network, start, recipe.start)
        if given is not None:
            given(network)
    if recipe.teacher:
        experts = recipe.hyper.teacher_experts
        options["teacher"] = build_network(recipe, task.num_classes, experts)
        if teacher is not None:
            take_weights(options["teacher"], teacher, recipe.teacher)
    return build_method(
        recipe.method, module=recipe.module, seed=seed, hyper=recipe.hyper, **options
    )


def build_untrained(
    recipe: Recipe, seed: int, task: Task, device: torch.device, epoch: int
) -> Method:
    """The method as it is scored, with random weights and the loss of an epoch.

    Random weights also where the recipe begins with given ones: it is a control for what comes
    with the loss and the network alone.
    """
    alone = replace(recipe, hyper=replace(recipe.hyper, swad=False))
    method = build(alone, seed, task).to(device)
    method.begin_epoch(epoch)
    return method.scored()
