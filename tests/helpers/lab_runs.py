"""Short trainings of small methods, and what a run's folder holds."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.interrupt import Interrupted, StopRequest
from batchformer.lab.engine.log import DivergedError, read_records
from batchformer.lab.engine.loop import Job, train_interleaved, training
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluate, Evaluation, Plan
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs.compare import folders_of, run, runs_of_comparison, train_all
from batchformer.lab.runs.folder import recipe_from_json, recipe_to_json, write_json
from batchformer.lab.runs.load_run import restore
from batchformer.lab.runs.run import Run
from batchformer.nn.randomness import drawing

CPU = torch.device("cpu")
#: One record for each run that a published table quotes.
RESULTS = Path(__file__).parents[2] / "results"


def published_recipes() -> set[str]:
    """Recipes with the paper's numbers, or with records."""
    recorded = {path.name for path in RESULTS.iterdir()}
    return {name for name in RECIPES if name in recorded or find_recipe(name).paper}


def short(recipe: Recipe | None = None, **train: Any) -> Recipe:
    """The demonstration, or another recipe, in six updates without figures, or as `train` says."""
    recipe = recipe or demo()
    options = {"updates": 6, "eval_every": 3, "log_every": 5, "figures": False, **train}
    return recipe.changed(train=options)


def train_one(recipe: Recipe, arm: str, seed: int, root: Path) -> Path:
    """Train an arm with a seed on the CPU, without a word; gives the folder of the run."""
    return run(recipe, arm, seed, root=root, device=CPU, quiet=True)


def compare(
    recipe: Recipe, arms: Sequence[str], seeds: Sequence[int], root: Path, together: int = 1
) -> Iterator[Path]:
    """Train every arm with every seed, as ``batchformer compare`` does."""
    runs = runs_of_comparison(recipe, arms, seeds, root, CPU)
    return folders_of(train_all(runs, quiet=True, together=together))


def quiet_plan(
    folder: Path,
    optim: OptimConfig,
    schedule: ScheduleConfig,
    seed: int = 3,
    device: str = "cpu",
    **train: Any,
) -> Plan:
    """A plan with these settings of the training; `train` are fields of ``TrainConfig``."""
    where = torch.device(device)
    return Plan(optim, schedule, TrainConfig(**train), seed, folder, where, quiet=True)


def fit(method: Method, batches: Batches, evaluate: Evaluate, plan: Plan) -> Evaluation:
    """Train one method to the end, as a run does."""
    job = Job(plan.title, lambda request: training(method, batches, evaluate, plan, request))
    ((_, ended),) = train_interleaved([job], plan.device)
    if isinstance(ended, DivergedError):
        raise ended
    return ended


def stop_after(
    updates: int, method: Method, batches: Batches, evaluate: Evaluate, plan: Plan
) -> None:
    """Train until a signal comes after so many updates; the state is saved."""
    request = StopRequest()
    run = training(method, batches, evaluate, plan, request)
    for _ in range(updates):
        next(run)
    request.signal_number = signal.SIGTERM
    with pytest.raises(Interrupted):
        next(run)


def begun(run: Run, quiet: bool = True) -> Iterator[None]:
    """The training of a run, update by update."""
    run.begin()
    return run.training(run.feed(), StopRequest(), quiet=quiet, wandb=None, draw_bar=True)


def same(one: Any, other: Any) -> bool:
    """Whether two nests of tensors and plain values are equal, bit by bit."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        alike = isinstance(other, Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and torch.equal(_bits(one), _bits(other))
    return bool(one == other)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def digits_method(
    name: str, counts: Tensor, hyper: MethodConfig | None = None, **module: Any
) -> Any:
    """A method for grey images of 8 x 8 pixels, with training images of each class (K,)."""
    with drawing(0, "weights"):
        network = build_model("digits_net", len(counts))
    options: dict[str, Any] = {"module": ModuleConfig(**module), "hyper": hyper, "seed": 0}
    return build_method(name, network=network, class_counts=counts, **options)


def config_of(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def result_of(folder: Path) -> dict[str, Any]:
    """What ``result.json`` says."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def metrics_of(folder: Path) -> dict[str, float]:
    """The scores of a finished run."""
    metrics: dict[str, float] = result_of(folder)["metrics"]
    return metrics


def records_of(folder: Path) -> list[dict[str, Any]]:
    """What a run logged, without its speed."""
    found = read_records(folder / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k != "samples_per_s"} for r in found]


def evaluations_of(folder: Path) -> list[dict[str, Any]]:
    """What each evaluation of a run found."""
    return [r for r in read_records(folder / "metrics.jsonl") if r["kind"] == "eval"]


def state_of(folder: Path) -> dict[str, Tensor]:
    """The weights of a run's method as it is loaded again."""
    return dict(restore(folder, CPU)[0].state_dict())


def scores_of(folder: Path) -> dict[str, float]:
    """What a run's method scores when it is loaded again."""
    method, task, config = restore(folder, CPU)
    train = recipe_from_json(config["trained"]).train
    with torch.no_grad():
        return task.evaluate(method, OptimizerStep(train, CPU)).metrics


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def contents(folder: Path) -> tuple[object, dict[str, bytes], dict[str, bytes]]:
    """Scores, arrays of figures, and final weights of a run, to the bit."""
    with np.load(folder / "figures.npz") as arrays:
        figures = {name: arrays[name].tobytes() for name in arrays.files}
    state = load_newest(folder / "checkpoints")
    assert state is not None
    weights = {name: value.numpy().tobytes() for name, value in state["method"].items()}
    return metrics_of(folder), figures, weights


def configuration(**train: Any) -> dict[str, Any]:
    """What ``config.json`` would hold of a run of ``pacs_coral``."""
    recipe = find_recipe("pacs_coral")
    changed = recipe.changed(train=train)
    return {"arm": "baseline", "seed": 0, "trained": recipe_to_json(changed)}


def trained_with(folder: Path, config: dict[str, Any]) -> None:
    """Make a folder in which this was trained for a while."""
    write_json(folder / "config.json", config)
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 50, "loss": 1.0}\n')


#: A program that holds a lock until it is killed.
HOLDER = """
import sys, time
from pathlib import Path
from batchformer.lab.data.files.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def held_by_another(lock: Path) -> Iterator[Popen[str]]:
    """Have another process hold a lock, which is killed at the end."""
    with Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            yield other
        finally:
            other.kill()


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
