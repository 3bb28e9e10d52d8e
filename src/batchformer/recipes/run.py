"""One run: a recipe, an arm and a seed, in a folder of its own."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from batchformer.engine.checkpoint import load_newest
from batchformer.engine.fit import Plan, of_this_training, training
from batchformer.engine.interrupt import StopRequest
from batchformer.engine.method import Batches, Method
from batchformer.engine.together import Training
from batchformer.insight.keep import keep, seen_of
from batchformer.insight.look import Arrays
from batchformer.methods import build_method
from batchformer.models.weights import file_hash, fit_weights
from batchformer.randomness import drawing
from batchformer.recipes.arms import with_arm
from batchformer.recipes.folder import (
    FORMAT,
    recorded,
    refuse_other_configuration,
    write_figures,
    write_json,
)
from batchformer.recipes.networks import (
    TIMM,
    build_network,
    given_stride,
    given_weights,
    settle_stride,
    take_given_weights,
    take_weights,
)
from batchformer.recipes.plain import as_plain, from_plain
from batchformer.recipes.provenance import provenance
from batchformer.recipes.recipe import OF_BOXES, Recipe
from batchformer.recipes.start import (
    Weights,
    final_state,
    require_finished,
    trained_network,
    trained_stride,
)
from batchformer.tasks.data_config import DataConfig
from batchformer.tasks.image_files import ImageFileTask
from batchformer.tasks.load import Task, load
from batchformer.tasks.long_tailed import LongTailedTask


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; ``auto`` takes cuda, then mps, then cpu."""
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


def build(
    recipe: Recipe,
    seed: int,
    task: Task,
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
    if recipe.method == "knn" and isinstance(task, LongTailedTask | ImageFileTask):
        options["bank"] = task.bank(seed, recipe.train.workers)
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


@dataclass(frozen=True)
class Run:
    """One arm of a recipe with one seed, and its folder.

    Args:
        part: where a run consists of several trainings, the name of this one.
    """

    recipe: Recipe
    arm: str
    seed: int
    folder: Path
    device: torch.device
    part: str = ""

    @property
    def title(self) -> str:
        return f"{self.recipe.name} {self.arm} seed {self.seed} {self.part}".rstrip()

    @property
    def task(self) -> Task:
        """Data and scores, as this seed has them."""
        return load_task(self.recipe.data, self.device).seeded(self.seed)

    @property
    def trained(self) -> Recipe:
        """The recipe as this arm trains it."""
        return with_arm(self.recipe, self.arm)

    def settled(self) -> Recipe:
        """The recipe as this arm trains it, with the stride of the weights that it begins with."""
        trained = self.trained
        try:
            runs = {str(folder): trained_stride(folder) for folder in self.sources.values()}
            return settle_stride(trained, {**given_stride(trained), **runs})
        except FileNotFoundError:
            # A run that is finished, or has a checkpoint, outlives the weights that it began with.
            before = recorded(self.folder)
            if before is None or trained.stride != "auto":
                return trained
            return dataclasses.replace(trained, stride=from_plain(before["trained"]).stride)

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()

    def begin(self) -> None:
        """Write what will be trained, where; refuse a folder that holds something else."""
        if not self.finished:
            self.require_sources()
        config = {
            "format": FORMAT,
            "recipe": as_plain(self.recipe),
            "arm": self.arm,
            "seed": self.seed,
            "trained": as_plain(self.settled()),
        }
        refuse_other_configuration(self.folder, config)
        if not self.finished:
            task = self.task
            more = {"data": task.facts(), "provenance": provenance(self.device)}
            if draws := task.draws():
                more["draws"] = draws
            if file := self.weights_file():
                more["weights"] = {"file": str(file), "sha256": file_hash(file)}
            elif (before := recorded(self.folder)) and "weights" in before:
                more["weights"] = before["weights"]
            write_json(self.folder / "config.json", {**config, **more})

    def weights_file(self) -> Path | None:
        """The file of weights to begin with; None where none is named, or one no longer needed.

        Raises:
            FileNotFoundError: it is not there, and no checkpoint has what became of its weights.
        """
        try:
            return given_weights(self.trained)
        except FileNotFoundError:
            if self.finished or load_newest(self.folder / "checkpoints") is not None:
                return None
            raise

    @property
    def sources(self) -> dict[str, Path]:
        """Folders of the runs whose networks this one needs: its start, its teacher."""
        needed = {"start": self.trained.start, "teacher": self.trained.teacher}
        root = self.folder.parents[3 if self.part else 2]
        return {
            role: root / recipe / (arm or self.arm) / f"seed{self.seed}" / self.part
            for role, name in needed.items()
            if name
            for recipe, _, arm in [name.partition("/")]
        }

    def require_sources(self) -> None:
        """Refuse an arm that makes no sense, and networks that are not there, before any work."""
        with_arm(self.recipe, self.arm)
        self.weights_file()
        if self.folder in self.sources.values():
            raise ValueError(
                f"{self.title} would start from itself: name another recipe or arm by --start."
            )
        if self.sources and not self.finished:
            # A detector's backbone was trained on other images.
            elsewhere = self.recipe.task == "detection"
            split = None if elsewhere else self.task.facts()["split_sha256"]
            for folder in self.sources.values():
                require_finished(folder, split, self.part)

    def feed(self) -> Batches:
        """The batches of this seed, the same for every arm."""
        return self.task.feed(self.trained.train, self.seed)

    def training(
        self, feed: Batches, request: StopRequest, *, quiet: bool, wandb: str | None, alone: bool
    ) -> Training:
        """Train, or go on where it stopped, and keep the result; update by update."""
        trained, task = self.settled(), self.task
        train = trained.train.in_updates(feed.per_epoch)
        started = time.perf_counter()
        plan = Plan(
            optim=trained.optim,
            schedule=trained.schedule,
            train=train,
            seed=self.seed,
            folder=self.folder,
            device=self.device,
            title=self.title,
            quiet=quiet,
            wandb_project=wandb,
        )
        weights = {role: trained_network(folder) for role, folder in self.sources.items()}
        say = partial(print, f"{self.title}:", file=sys.stderr, flush=True)
        given = partial(take_given_weights, recipe=trained, say=(lambda _: None) if quiet else say)
        needed = trained.weights == TIMM or self.weights_file() is not None
        method = build(trained, self.seed, task, **weights, given=given if needed else None)
        evaluation = yield from training(method, feed, task.evaluate, plan, request, alone)
        write_figures(self.folder / "figures.npz", evaluation.figures)
        result = {
            "metrics": evaluation.metrics,
            "minutes": round((time.perf_counter() - started) / 60, 3),
            "updates": train.updates,
            "selected": train.select_on,
        }
        keep(partial(self._seen, method.scored(), task), self.folder, self.title)
        write_json(self.folder / "result.json", result)
        return evaluation

    def _seen(self, method: Method, task: Task) -> Arrays | None:
        """What is to be seen of the network that is reported, which may be an earlier one."""
        shown = getattr(task, "shown", None)
        if shown is None or method.relations() is None:
            return None
        if state := final_state(self.folder):
            method.load_state_dict(dict(state))
        return seen_of(method, shown(self.trained.train.workers), self.seed)


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
