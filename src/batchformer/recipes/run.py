"""One run: a recipe, an arm and a seed, in a folder of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from batchformer import __version__
from batchformer.engine.checkpoint import load_newest, write_atomically
from batchformer.engine.fit import Evaluation, Plan, fit
from batchformer.engine.method import Method
from batchformer.engine.window import DivergedError
from batchformer.methods import build_method
from batchformer.models.build import build_model
from batchformer.randomness import drawing
from batchformer.recipes.arms import with_arm
from batchformer.recipes.recipe import Recipe
from batchformer.tasks.config import LongTailConfig
from batchformer.tasks.long_tailed import LongTailedTask

#: Rooms of the package that play no part in training.
NOT_TRAINING = {"report", "bench", "adapters", "cli.py", "options.py", "__main__.py"}


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; ``auto`` takes cuda, then mps, then cpu."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@lru_cache(maxsize=2)
def load_task(config: LongTailConfig, device: torch.device) -> LongTailedTask:
    """The task's data, read once for all the runs of a comparison."""
    return LongTailedTask.load(config, device)


def build(recipe: Recipe, seed: int, task: LongTailedTask) -> Method:
    """The method of a recipe with the initial weights of a seed."""
    with drawing(seed, "weights"):
        network = build_model(recipe.model, task.num_classes)
    return build_method(
        recipe.method, network=network, module=recipe.module, seed=seed, **task.method_options
    )


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
    """
    folder = root / recipe.name / arm / f"seed{seed}"
    trained = with_arm(recipe, arm)
    task = load_task(recipe.data, device)
    config = {"recipe": as_plain(recipe), "arm": arm, "seed": seed, "trained": as_plain(trained)}
    _refuse_other_configuration(folder, config)
    if (folder / "result.json").exists():
        return folder
    _write_json(
        folder / "config.json", {**config, "data": task.facts(), "provenance": provenance(device)}
    )
    started = time.perf_counter()
    plan = Plan(
        optim=trained.optim,
        schedule=trained.schedule,
        train=trained.train,
        seed=seed,
        folder=folder,
        device=device,
        title=f"{recipe.name} {arm} seed {seed}",
        quiet=quiet,
        wandb_project=wandb_project,
    )
    feed = task.feed(trained.train, seed)
    evaluation = fit(build(trained, seed, task), feed, task.evaluate, plan)
    minutes = (time.perf_counter() - started) / 60
    _write_figures(folder / "figures.npz", evaluation)
    result = {
        "metrics": evaluation.metrics,
        "minutes": round(minutes, 3),
        "updates": trained.train.updates,
        "selected": trained.train.select_on,
    }
    _write_json(folder / "result.json", result)
    return folder


def compare(
    recipe: Recipe,
    arms: Sequence[str],
    seeds: Sequence[int],
    *,
    root: Path,
    device: torch.device,
    quiet: bool = False,
) -> Iterator[Path]:
    """Every arm with every seed, seed by seed, so that an early look is already paired.

    A run that diverges is reported and left; the others go on.
    """
    for seed in seeds:
        for arm in arms:
            try:
                yield run(recipe, arm, seed, root=root, device=device, quiet=quiet)
            except DivergedError as error:
                print(f"{recipe.name} {arm} seed {seed}: {error}", file=sys.stderr, flush=True)


def restore(folder: Path, device: torch.device) -> tuple[Method, LongTailedTask, dict[str, Any]]:
    """The trained method of a run folder, its task and its configuration."""
    path = folder / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} is not a run folder: it holds no config.json.")
    config = json.loads(path.read_text())
    state = load_newest(folder / "checkpoints")
    if state is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint to load.")
    recipe = from_plain(config["trained"])
    task = load_task(recipe.data, device)
    method = build(recipe, config["seed"], task)
    method.load_state_dict(state["method"])
    if state["average"] is not None:
        average = state["average"]
        own = {k.removeprefix("module."): v for k, v in average.items() if k != "n_averaged"}
        method.load_state_dict(own)
    return method.to(device).eval(), task, config


def as_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON holds it."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    return plain


def from_plain(plain: dict[str, Any]) -> Recipe:
    """The recipe that :func:`as_plain` wrote."""
    values: dict[str, Any] = dict(plain)
    for field in dataclasses.fields(Recipe):
        default = field.default_factory
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            lists = {
                k: tuple(v) if isinstance(v, list) else v for k, v in values[field.name].items()
            }
            values[field.name] = default(**lists)
    return Recipe(**values)


def provenance(device: torch.device) -> dict[str, Any]:
    """Which code ran where, and by which command."""
    hardware = platform.processor() or platform.machine()
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    return {
        "batchformer": __version__,
        "code_sha256": code_hash(),
        "git": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "hardware": f"{hardware}, {torch.get_num_threads()} threads",
        "command": shlex.join(["batchformer", *sys.argv[1:]]),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@lru_cache(maxsize=1)
def code_hash() -> str:
    """SHA-256 over the source files that training depends on; reports may change freely."""
    package = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in NOT_TRAINING:
            total.update(name.as_posix().encode() + path.read_bytes())
    return total.hexdigest()


@lru_cache(maxsize=1)
def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _refuse_other_configuration(folder: Path, config: dict[str, Any]) -> None:
    """A folder holds one configuration: mixing two would average what is not comparable."""
    path = folder / "config.json"
    if not path.exists():
        return
    before = json.loads(path.read_text())
    changed = list(_differences(before["trained"], config["trained"]))
    if changed:
        raise ValueError(
            f"{folder} holds a run of this name with other settings: {'; '.join(changed)}. Give "
            f"--runs another folder, or remove that one."
        )


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key} was {a}, is {b}"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _write_figures(path: Path, evaluation: Evaluation) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **evaluation.figures)
    write_atomically(path, buffer.getvalue())
