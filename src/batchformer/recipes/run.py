"""One run: a recipe, an arm and a seed, in a folder of its own."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from batchformer.engine.checkpoint import load_newest, write_atomically
from batchformer.engine.fit import Evaluation, Plan, training
from batchformer.engine.interrupt import StopRequest
from batchformer.engine.method import Batches, Method
from batchformer.engine.together import Job, Training, train_together
from batchformer.engine.window import DivergedError
from batchformer.methods import build_method
from batchformer.models.weights import file_hash
from batchformer.randomness import drawing
from batchformer.recipes.arms import with_arm
from batchformer.recipes.networks import (
    TIMM,
    build_network,
    given_stride,
    given_weights,
    settle_stride,
    take_given_weights,
    take_weights,
)

# Named twice: what reads runs finds these here too.
from batchformer.recipes.plain import as_plain as as_plain
from batchformer.recipes.plain import completed
from batchformer.recipes.plain import from_plain as from_plain
from batchformer.recipes.provenance import provenance
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.start import (
    Weights,
    require_finished,
    trained_network,
    trained_state,
    trained_stride,
)
from batchformer.tasks.load import DataConfig, Task, load
from batchformer.tasks.meta import close

#: Settings that change no result, so that a run may go on with others.
OF_NO_EFFECT = ("train.workers",)


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; ``auto`` takes cuda, then mps, then cpu."""
    if name != "auto":
        return torch.device(name)
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
    with drawing(seed, "weights"):
        network = build_network(recipe, task.num_classes)
    if start is not None:
        take_weights(network, start, recipe.start)
    if given is not None:
        given(network)
    options = task.method_options
    if recipe.teacher:
        experts = recipe.hyper.teacher_experts
        options["teacher"] = build_network(recipe, task.num_classes, experts)
        if teacher is not None:
            take_weights(options["teacher"], teacher, recipe.teacher)
    return build_method(
        recipe.method,
        network=network,
        module=recipe.module,
        seed=seed,
        hyper=recipe.hyper,
        **options,
    )


@dataclass(frozen=True)
class Run:
    """One arm of a recipe with one seed, and its folder."""

    recipe: Recipe
    arm: str
    seed: int
    folder: Path
    device: torch.device

    @property
    def title(self) -> str:
        return f"{self.recipe.name} {self.arm} seed {self.seed}"

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
            before = _recorded(self.folder)
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
            "recipe": as_plain(self.recipe),
            "arm": self.arm,
            "seed": self.seed,
            "trained": as_plain(self.settled()),
        }
        _refuse_other_configuration(self.folder, config)
        if not self.finished:
            data = load_task(self.recipe.data, self.device).facts()
            more = {"data": data, "provenance": provenance(self.device)}
            if file := self.weights_file():
                more["weights"] = {"file": str(file), "sha256": file_hash(file)}
            elif (before := _recorded(self.folder)) and "weights" in before:
                more["weights"] = before["weights"]
            _write_json(self.folder / "config.json", {**config, **more})

    def weights_file(self) -> Path | None:
        """The file of weights to begin with; None where none is named, or one no longer needed.

        Raises:
            FileNotFoundError: it is not there, and no checkpoint has what became of its weights.
        """
        try:
            return given_weights(self.recipe)
        except FileNotFoundError:
            if self.finished or load_newest(self.folder / "checkpoints") is not None:
                return None
            raise

    @property
    def sources(self) -> dict[str, Path]:
        """Folders of the runs whose networks this one needs: its start, its teacher."""
        needed = {"start": self.recipe.start, "teacher": self.recipe.teacher}
        root = self.folder.parents[2]
        return {
            role: root / recipe / (arm or self.arm) / f"seed{self.seed}"
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
            facts = load_task(self.recipe.data, self.device).facts()
            for folder in self.sources.values():
                require_finished(folder, facts["split_sha256"])

    def feed(self) -> Batches:
        """The batches of this seed, the same for every arm."""
        return load_task(self.recipe.data, self.device).feed(self.trained.train, self.seed)

    def training(
        self, feed: Batches, request: StopRequest, *, quiet: bool, wandb: str | None, alone: bool
    ) -> Training:
        """Train, or go on where it stopped, and keep the result; update by update."""
        trained, task = self.settled(), load_task(self.recipe.data, self.device)
        started = time.perf_counter()
        plan = Plan(
            optim=trained.optim,
            schedule=trained.schedule,
            train=trained.train,
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
        _write_figures(self.folder / "figures.npz", evaluation)
        result = {
            "metrics": evaluation.metrics,
            "minutes": round((time.perf_counter() - started) / 60, 3),
            "updates": trained.train.updates,
            "selected": trained.train.select_on,
        }
        _write_json(self.folder / "result.json", result)
        return evaluation


def run(
    recipe: Recipe,
    arm: str,
    seed: int,
    *,
    root: Path,
    device: torch.device,
    quiet: bool = False,
    wandb_project: str | None = None,
) -> Path:
    """Train one arm with one seed, or go on where it stopped, or find it finished.

    Returns:
        The run's folder, which holds all that a report needs.

    Raises:
        DivergedError: a loss became NaN or infinite; the last good checkpoint is kept.
    """
    one = Run(recipe, arm, seed, root / recipe.name / arm / f"seed{seed}", device)
    for _, error in train_runs([one], quiet, wandb_project):
        if error is not None:
            raise error
    return one.folder


def compare(
    recipe: Recipe,
    arms: Sequence[str],
    seeds: Sequence[int],
    *,
    root: Path,
    device: torch.device,
    quiet: bool = False,
    together: int = 1,
) -> Iterator[Path]:
    """Every arm with every seed, seed by seed, so that an early look is already paired.

    A run that diverges is reported and left; the others go on.

    Args:
        together: runs that train side by side on the device.
    """
    runs = [
        Run(recipe, arm, seed, root / recipe.name / arm / f"seed{seed}", device)
        for seed in seeds
        for arm in arms
    ]
    for one in runs:
        one.require_sources()
    finished = [one for one in runs if one.finished]
    waiting = [one for one in runs if not one.finished]
    parts = [waiting[start : start + together] for start in range(0, len(waiting), together)]
    for part in [finished, *parts] if finished else parts:
        for one, error in train_runs(part, quiet):
            if error is None:
                yield one.folder
            else:
                print(f"{one.title}: {error}", file=sys.stderr, flush=True)


def train_runs(
    runs: Sequence[Run], quiet: bool, wandb: str | None = None
) -> Iterator[tuple[Run, DivergedError | None]]:
    """Train what is not finished, side by side; arms of one seed share their batches."""
    for one in runs:
        one.begin()
    feeds: dict[Any, Batches] = {}
    try:
        yield from _train_on(runs, feeds, quiet, wandb)
    finally:  # also where a run fails, is interrupted, or nobody asks for the next one
        for feed in feeds.values():
            close(feed)


def _train_on(
    runs: Sequence[Run], feeds: dict[Any, Batches], quiet: bool, wandb: str | None
) -> Iterator[tuple[Run, DivergedError | None]]:
    by_name: dict[str, Run] = {}
    jobs = []
    for one in runs:
        if one.finished:
            yield one, None
            continue
        train = one.trained.train
        key = (one.recipe.data, one.seed, train.batch_size, train.drop_last)
        feed = feeds[key] = feeds.get(key) or one.feed()
        options = {"quiet": quiet, "wandb": wandb, "alone": len(runs) == 1}
        by_name[one.title] = one
        jobs.append(Job(one.title, partial(one.training, feed, **options)))  # type: ignore[arg-type]
    for job, ended in train_together(jobs, runs[0].device):
        yield by_name[job.name], ended if isinstance(ended, DivergedError) else None


def restore(folder: Path, device: torch.device) -> tuple[Method, Task, dict[str, Any]]:
    """The trained method of a run folder, its task and its configuration."""
    config = _recorded(folder)
    if config is None:
        raise FileNotFoundError(f"{folder} is not a run folder: it holds no config.json.")
    state = load_newest(folder / "checkpoints")
    if state is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint to load.")
    recipe = from_plain(config["trained"])
    task = load_task(recipe.data, device)
    method = build(recipe, config["seed"], task)
    method.load_state_dict(trained_state(state))
    return method.to(device).eval(), task, config


def _recorded(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run that a folder holds, if it holds one."""
    path = folder / "config.json"
    config: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return config


def _refuse_other_configuration(folder: Path, config: dict[str, Any]) -> None:
    """A folder holds one configuration: mixing two would average what is not comparable."""
    before = _recorded(folder)
    if before is None:
        return
    changed = list(_differences(completed(before["trained"]), config["trained"]))
    if changed:
        raise ValueError(
            f"{folder} holds a run of this name with other settings: {'; '.join(changed)}. Give "
            f"--runs another folder, or remove that one."
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differences(a, b, f"{prefix}{key}.")
        elif a != b and f"{prefix}{key}" not in OF_NO_EFFECT:
            yield f"{prefix}{key} was {a}, is {b}"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _write_figures(path: Path, evaluation: Evaluation) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **evaluation.figures)
    write_atomically(path, buffer.getvalue())
