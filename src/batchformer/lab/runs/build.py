"""Builds what a recipe names: network, initial weights, method, task and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from batchformer.lab.config.consistency import source_names
from batchformer.lab.config.data import DataConfig
from batchformer.lab.config.methods import find_method
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.engine.method import Method
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import (
    EXPERTS,
    OWN,
    build_model,
    models_with_weights,
    train_last_block,
)
from batchformer.lab.models.heads import WithFeatureLayer, classifier_name
from batchformer.lab.models.norms import freeze_norm
from batchformer.lab.models.weights import (
    OtherNetwork,
    Place,
    StoredWeights,
    find_weights,
    fit_weights,
    move_stride,
    read_stride,
    read_weights,
    timm_weights,
)
from batchformer.lab.runs.source_runs import Weights
from batchformer.lab.tasks.base import Task, load
from batchformer.nn.exchange import world_size
from batchformer.nn.randomness import drawing

#: The value of a recipe's ``weights`` that stands for timm's weights.
TIMM = "timm"
#: Where bottlenecks stride in timm's weights.
TIMMS_STRIDE: Place = "3x3"
#: Modules of timm whose networks embed the position of every patch, and so take one image size.
TRANSFORMERS = ["vision_transformer", "deit"]

# The network and its weights


def build_network(recipe: Recipe, num_classes: int, experts: int | None = None) -> nn.Module:
    """The recipe's network with random weights.

    Args:
        experts: number of experts, where the network has some; None for the recipe's number.
    """
    options: dict[str, Any] = {}
    if recipe.model in EXPERTS:
        options = {"experts": experts or recipe.hyper.experts, "scale": recipe.hyper.scale}
    elif recipe.model not in OWN:
        options = _options_of_timm(recipe)
    elif recipe.hyper.drop_path and "drop_path_rate" in signature(OWN[recipe.model]).parameters:
        options["drop_path_rate"] = recipe.hyper.drop_path
    if recipe.hyper.drop_path and "drop_path_rate" not in options:
        raise ValueError(
            f"{recipe.model} has no blocks to leave out: set --hyper.drop-path 0, or name a "
            "network of timm's, or deit_cifar, by --model."
        )
    network = build_model(recipe.model, num_classes, **options)
    if recipe.stride == "1x1":
        move_stride(network, "1x1")
    if recipe.hyper.frozen_norm:
        freeze_norm(network)
    if recipe.convolutions == "last_block":
        train_last_block(network)
    width = recipe.hyper.feature_layer
    return WithFeatureLayer(network, width) if width else network


def take_weights(network: nn.Module, weights: Weights, source: str) -> None:
    """Load the weights of another run, or say how its network differs."""
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise ValueError(_unfit(network, weights, source)) from error


def _unfit(network: nn.Module, weights: Weights, source: str) -> str:
    """How weights differ from those of a network, and what to set."""
    own = network.state_dict()
    shapes = {
        name: [tuple(state[name].shape) if name in state else "absent" for state in (weights, own)]
        for name in {**own, **weights}
    }
    wrong = [f"{n}: {there}, here {here}" for n, (there, here) in shapes.items() if there != here]
    words = (
        f"The network of {source} does not fit this run's {type(network).__name__}: {len(wrong)} "
        f"of {len(shapes)} tensors are missing or have another shape ({shorten(wrong)})."
    )
    there, here = _experts(weights), _experts(own)
    if there and here and there != here:
        return (
            f"{words} It has {there} experts where this run has {here}: set --hyper.experts "
            f"{there}, or --hyper.teacher-experts {there} where it is the teacher."
        )
    return f"{words} Name a run of the same network (--model) and method of classification."


def _experts(state: Weights) -> int:
    """Number of experts; 0 for networks without."""
    return len({name.split(".")[1] for name in state if name.startswith("branches.")})


def given_weights(recipe: Recipe) -> Path | None:
    """The file of the recipe's weights; None where it names no file.

    Raises:
        FileNotFoundError: it is missing; says where it was looked for.
    """
    if recipe.weights in ("", TIMM):
        return None
    return find_weights(recipe.weights, recipe.data.root)


def given_stride(recipe: Recipe) -> dict[str, Place]:
    """Where bottlenecks stride in the recipe's weights, by their source; empty if not known.

    Raises:
        FileNotFoundError: the file of weights is missing.
    """
    file = given_weights(recipe)
    told = recipe.stride != "auto"
    stride = read_stride(file, told) if file else TIMMS_STRIDE if recipe.weights == TIMM else None
    return {} if stride is None else {_source(recipe, file): stride}


def settle_stride(recipe: Recipe, said: Mapping[str, Place]) -> Recipe:
    """The recipe with the stride that the sources of its initial weights state."""
    places: dict[str, Place] = dict(said)
    if recipe.stride != "auto":
        places["the recipe"] = recipe.stride
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{source} says {place}" for source, place in places.items())
        raise ValueError(
            f"All bottlenecks of a run stride in the same convolution, and {listed}. Weights of "
            "one layout load into the other and give wrong results: leave stride auto, or name "
            "other weights."
        )
    # Networks stride in the 3x3 by default, so "auto" stays as it is.
    return recipe.changed(stride="1x1") if "1x1" in places.values() else recipe


def take_given_weights(network: nn.Module, recipe: Recipe, say: Callable[[str], None]) -> None:
    """Load the recipe's weights, if it names any, and give the network their stride."""
    if not recipe.weights:
        return
    file = given_weights(recipe)
    if file is None:
        stored = StoredWeights(timm_weights(recipe.model), TIMMS_STRIDE)
    else:
        stored = read_weights(file, stride_told=recipe.stride != "auto")
    source = _source(recipe, file)
    settled = settle_stride(recipe, {source: stored.stride} if stored.stride else {})
    whole, tensors = network, stored.tensors
    if isinstance(network, WithFeatureLayer) and not any(k.startswith("body.") for k in tensors):
        # The weights are of the network without this layer. Their classifier reads other features.
        network = network.body
        head = f"{classifier_name(network)}."
        tensors = {name: value for name, value in tensors.items() if not name.startswith(head)}
    try:
        fitted = fit_weights(network, tensors, source)
    except OtherNetwork as error:
        fitting = models_with_weights(stored.tensors, like=recipe.model)
        if not fitting:
            raise
        raise OtherNetwork(f"{error} It fits --model {' or '.join(fitting)}.") from error
    with_classifier = fitted.classifier and network is whole
    if not with_classifier and find_method(recipe.method).given == "classifier":
        raise ValueError(
            f"{recipe.method} works on a trained classifier. {fitted.words} Name weights with a "
            "classifier of these classes by --weights, or a run by --start."
        )
    words = fitted.words + (f" They are {stored.words}." if stored.words else "")
    if settled.stride == "1x1":
        move_stride(network, "1x1")
        by = "its metadata" if stored.stride else "the recipe"
        words += f" Bottlenecks stride in their first 1x1 convolution, as {by} says."
    say(words)


def _source(recipe: Recipe, file: Path | None) -> str:
    return str(file or f"timm's {recipe.model}")


def _options_of_timm(recipe: Recipe) -> dict[str, Any]:
    """Options of a network of timm's besides its number of classes."""
    from timm.models import is_model_in_modules

    name = recipe.model.partition(".")[0]
    options: dict[str, Any] = {}
    if is_model_in_modules(name, ["resnet"]):
        options["zero_init_last"] = recipe.hyper.zero_init_last
    size = getattr(recipe.data, "size", None)
    if size and is_model_in_modules(name, TRANSFORMERS):
        options["img_size"] = size
    if recipe.hyper.drop_path:
        options["drop_path_rate"] = recipe.hyper.drop_path
    return options


# Device, task and method


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; ``auto`` takes cuda, else mps (not on several ranks), else cpu."""
    if world_size() > 1 and name in ("auto", "cuda"):
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
        present = {"cuda": torch.cuda.device_count(), "mps": torch.backends.mps.is_available()}
        count = int(present.get(device.type, 1))
        if not count:
            raise ValueError(
                f"--device {name}: torch finds no {device.type.upper()} device here; set --device "
                "cpu."
            )
        if (device.index or 0) >= count:
            raise ValueError(
                f"--device {name}: torch finds {count} of this kind here, counted from 0."
            )
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
    """Sizes from a run's configuration, to build its network without the data."""

    num_classes: int
    method_options: dict[str, Any]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RecordedSizes:
        """Read what :func:`recordable` returned."""
        options = {name: value for name, value in record.items() if name != "num_classes"}
        if "class_counts" in options:
            options["class_counts"] = torch.tensor(options["class_counts"])
        return cls(int(record["num_classes"]), options)


def recordable(task: Sizes) -> dict[str, Any] | None:
    """What a method of this task is built with, as JSON holds it.

    None for compositional and generalized zero-shot methods, which are built with vectors of the
    data.
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
    teachers: Sequence[Weights] = (),
    given: Callable[[nn.Module], None] | None = None,
) -> Method:
    """The method of a recipe with the initial weights of a seed.

    Args:
        start: the network's weights, from the run that this one starts from.
        teachers: weights of its teachers; without these, teachers are random until a checkpoint is
            loaded.
        given: loads the recipe's weights into the network; without it they stay random.
    """
    options, entry = dict(task.method_options), find_method(recipe.method)
    if entry.bank:
        bank: Any = getattr(task, "bank", None)  # without images only the network is built
        options["bank"] = bank and bank(seed, recipe.train.workers)
    if recipe.model:
        with drawing(seed, "weights"):
            network = options["network"] = build_network(recipe, task.num_classes)
        if start is not None and recipe.task == "detection":
            fit_weights(network, start, recipe.start)  # a detector needs no classifier
        elif start is not None:
            take_weights(network, start, recipe.start)
        if given is not None:
            given(network)
    if recipe.teacher:
        made = build_teachers(recipe, task, teachers)
        options["teacher"] = made if entry.teacher_classes else made[0]
    return build_method(
        recipe.method, module=recipe.module, seed=seed, hyper=recipe.hyper, **options
    )


def build_teachers(recipe: Recipe, task: Sizes, weights: Sequence[Weights]) -> list[nn.Module]:
    """The networks that a method learns from, with the weights of their runs if these are given."""
    names, sizes = source_names(recipe.teacher), find_method(recipe.method).teacher_classes
    classes: Sequence[int] = (task.num_classes,)
    if sizes is not None:
        classes = sizes(recipe.hyper, task.method_options["class_counts"].tolist())
    wanted = f"{len(classes)} networks, of {', '.join(map(str, classes))} classes"
    if len(classes) != len(names):
        raise ValueError(
            f"{recipe.method} learns from {wanted}, and --teacher names {len(names)}: "
            f"{', '.join(names)}."
        )
    made = [build_network(recipe, size, recipe.hyper.teacher_experts) for size in classes]
    for network, own, name in zip(made, weights, names, strict=False):
        try:
            take_weights(network, own, name)
        except ValueError as error:
            if sizes is None:
                raise
            raise ValueError(
                f"{error} With these settings {recipe.method} learns from {wanted}, in this order."
            ) from error
    return made


def build_untrained(
    recipe: Recipe, seed: int, task: Task, device: torch.device, epoch: int
) -> Method:
    """The method with random weights and the loss of an epoch.

    It is a control for what comes with loss and network alone, so its weights are random even if
    the recipe names a file of weights.
    """
    method = build(recipe, seed, task).to(device)
    method.begin_epoch(epoch)
    return method
