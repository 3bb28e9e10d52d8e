"""The loop: train a method, update by update, from wherever it was left."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from batchformer.engine import checkpoint
from batchformer.engine.average import RunningMean
from batchformer.engine.capture import Captured, Eager, why_eager
from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.engine.interrupt import Interrupted, StopRequest, stop_requests
from batchformer.engine.log import Progress, RunLog
from batchformer.engine.mechanics import Batch, Mechanics
from batchformer.engine.method import Batches, Method
from batchformer.engine.optim import forget, load_state, lr_factor, set_lr, state_of
from batchformer.engine.window import Window
from batchformer.randomness import seed_for


@dataclass(frozen=True)
class Evaluation:
    """What a task measures: scores by name, the headline first, and arrays for its figures."""

    metrics: dict[str, float]
    figures: dict[str, Any] = field(default_factory=dict)


Evaluate = Callable[[Method, Mechanics], Evaluation]

#: Folder of the network that is reported where that is not the last.
BEST = "best"


@dataclass(frozen=True)
class Plan:
    """How to train, where, and where to keep it."""

    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig
    seed: int
    folder: Path
    device: torch.device
    title: str = "run"
    quiet: bool = False
    wandb_project: str | None = None


def fit(method: Method, batches: Batches, evaluate: Evaluate, plan: Plan) -> Evaluation:
    """Train to the end, resuming from the folder's newest checkpoint, and evaluate.

    Interrupted and resumed equals uninterrupted: batches, learning rates and random draws are
    functions of the update, and the rest is in the checkpoint.

    Raises:
        Interrupted: SIGINT or SIGTERM came; the state is saved.
        DivergedError: a loss became NaN or infinite; the last good checkpoint is kept.
    """
    with stop_requests() as request, own_stream(plan.device):
        run = training(method, batches, evaluate, plan, request)
        while True:
            try:
                next(run)
            except StopIteration as end:
                evaluation: Evaluation = end.value
                return evaluation


def own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """A stream for one run: graphs are not recorded on the default one."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def training(
    method: Method,
    batches: Batches,
    evaluate: Evaluate,
    plan: Plan,
    request: StopRequest,
    alone: bool = True,
) -> Generator[None, None, Evaluation]:
    """:func:`fit` update by update: whoever drives it may do other things in between.

    Args:
        request: asks the run to save and stop.
        alone: whether this run may have the terminal for itself.
    """
    torch.use_deterministic_algorithms(plan.train.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = plan.train.precision == "tf32"
    method.to(plan.device)
    if plan.train.channels_last:
        method.to(memory_format=torch.channels_last)
    log = RunLog(plan.folder, plan.wandb_project)
    try:
        with Progress(plan.title, plan.train.updates, plan.quiet, live=alone) as bar:
            found = checkpoint.load_newest(plan.folder / "checkpoints", bar.say)
            with of_this_training(plan.folder):
                first = int(found["counters"]["stage"]) if found else 0
            for index in range(first, len(method.stages)):
                run = _Stage(method, batches, evaluate, plan, log, bar, index, found)
                evaluation = yield from run.train(request)
                found = None
    finally:
        log.close()
    return evaluation


@contextmanager
def of_this_training(folder: Path) -> Iterator[None]:
    """Say in words that the state of a folder does not fit what is trained in it."""
    try:
        yield
    except torch.OutOfMemoryError:  # no fault of the state
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"The newest checkpoint in {folder} is not of this training ({reason[:200]}). Give "
            "--runs another folder, or remove what does not belong in that one."
        ) from error


class _Stage:
    """One stage of a run: what changes while it goes, and how."""

    def __init__(
        self,
        method: Method,
        batches: Batches,
        evaluate: Evaluate,
        plan: Plan,
        log: RunLog,
        bar: Progress,
        index: int,
        found: dict[str, Any] | None,
    ) -> None:
        self.method, self.batches, self.evaluator, self.plan = method, batches, evaluate, plan
        self.log, self.bar = log, bar
        method.begin_stage(method.stages[index])
        method.begin_training(plan.train.updates)
        self.optimizers: dict[str, Optimizer] = method.optimizers(plan.optim)
        self.mechanics = Mechanics(plan.train, plan.device)
        self.average = RunningMean(method, plan.train.ema) if plan.train.ema else None
        self.counters: dict[str, Any] = {"stage": index, "update": 0, "seconds": 0.0}
        self.best: dict[str, float] = {}
        self.window = Window()
        if found is not None:
            with of_this_training(plan.folder):
                self.restore(found)
        log.rewind(self.update)
        bar.resume(self.update)
        method.begin_epoch(self.update // batches.per_epoch)
        self.updater = self._updater()

    def _updater(self) -> Captured | Eager:
        """How updates are run, and one line that says so and why."""
        plan, reason = self.plan, why_eager(self.plan.train, self.plan.device, self.method)
        how = "updates are eager" if reason else "updates are recorded as a CUDA graph"
        self.bar.note(f"{plan.title}: {how}" + (f": {reason}" if reason else ""))
        if reason:
            return Eager(self.work, plan.device)
        return Captured(self.work, plan.device, self.method.phase, self.bar.say)

    @property
    def update(self) -> int:
        return int(self.counters["update"])

    def train(self, request: StopRequest) -> Generator[None, None, Evaluation]:
        train, evaluation = self.plan.train, Evaluation({})
        eval_every = train.eval_every or train.updates
        save_every = train.checkpoint_every or eval_every
        if train.compile:
            self.method.compile_step()
        self.method.train()
        while True:
            update, finished = self.update, self.update >= train.updates
            due = finished or (update > 0 and update % eval_every == 0)
            if self.window.rows and (due or update % train.log_every == 0):
                self.record()
            # Saved before it is evaluated: a run killed in between evaluates again, the same.
            if request.signal_number or finished or (update > 0 and update % save_every == 0):
                self.save()
            if request.signal_number:
                words = f"{self.plan.title}: stopped and saved at update {update}. "
                words += "The same command goes on from there."
                raise Interrupted(request.signal_number, words)
            if due:
                evaluation = self.evaluate()
            if finished:
                break
            self.one_update()
            yield
        self.method.release_step()
        others = self.conclude()
        if train.select_on != "last":
            evaluation = Evaluation(self.best, self.figures_of_best())
        metrics = {**evaluation.metrics, **others.metrics}
        return Evaluation(metrics, {**evaluation.figures, **others.figures})

    def one_update(self) -> None:
        plan, method, update = self.plan, self.method, self.update
        per_epoch = self.batches.per_epoch
        if update % per_epoch == 0:
            method.begin_epoch(update // per_epoch)
        batch = self.batches.batch(update)
        if update and update == plan.schedule.restart:
            for optimizer in self.optimizers.values():
                forget(optimizer)
        factor = lr_factor(plan.schedule, update, plan.train.updates, per_epoch)
        for optimizer in self.optimizers.values():
            set_lr(optimizer, factor)
        losses = self.updater(self._in_format(batch), seed_for(plan.seed, "dropout", update))
        self.counters["update"] = update + 1
        self.window.add(losses, plan.optim.lr * factor, len(batch["y"]))

    def work(self, batch: Batch) -> dict[str, Tensor]:
        """All that an update computes; this is what a graph holds."""
        losses = self.method.update(batch, self.optimizers, self.mechanics)
        self.method.after_update()
        if self.average is not None:
            self.average.update_parameters(self.method)
        return losses

    def _in_format(self, batch: Batch) -> Batch:
        if not self.plan.train.channels_last:
            return batch
        return {
            name: value.contiguous(memory_format=torch.channels_last)
            if isinstance(value, Tensor) and value.ndim == 4
            else value
            for name, value in batch.items()
        }

    def record(self) -> None:
        """Write the window's means; stop if one of its losses is not a number."""
        values = self.window.record()
        epoch = (self.update - 1) // self.batches.per_epoch
        self.counters["seconds"] += time.perf_counter() - self.window.started
        self.log.write("train", epoch, self.update, values)
        self.bar.train(epoch, self.update, values["loss"], values["samples_per_s"])
        self.window = Window(self.update)

    def evaluate(self) -> Evaluation:
        started = time.perf_counter()
        self.method.before_evaluation()
        trained: Any = self.method if self.average is None else self.average.module
        evaluation = self.scored(trained)
        self.method.train()
        epoch = self.update // self.batches.per_epoch
        self.log.write("eval", epoch, self.update, evaluation.metrics)
        self.bar.evaluated(epoch, self.update, evaluation.metrics)
        decisive = self._decisive(evaluation.metrics)
        # A score that could not be measured is NaN, and worse than any other.
        new, old = evaluation.metrics[decisive], self.best.get(decisive, math.nan)
        if not self.best or new > old or (math.isnan(old) and not math.isnan(new)):
            self.best = dict(evaluation.metrics)
            if self.plan.train.select_on != "last":
                state = {"method": trained.scored().state_dict()}
                checkpoint.save(self.plan.folder / BEST, self.update, state)
        self.method.after_evaluation(evaluation.metrics)
        self.window.pause(time.perf_counter() - started)
        return evaluation

    def scored(self, trained: Method) -> Evaluation:
        trained.eval()
        with torch.no_grad():
            return self.evaluator(trained, self.mechanics)

    def _decisive(self, metrics: dict[str, float]) -> str:
        """The score by which the best evaluation is told: the headline, or that of validation."""
        if self.plan.train.select_on != "val":
            return next(iter(metrics))
        if "val" not in metrics:
            raise ValueError(
                "train.select-on is val, but this task has no validation data; it measures "
                f"{', '.join(metrics)}. Set train.select-on last."
            )
        return "val"

    def figures_of_best(self) -> dict[str, Any]:
        """What the figures need of the evaluation that is reported, which may be an earlier one."""
        kept = checkpoint.load_newest(self.plan.folder / BEST, self.bar.say)
        if kept is None:
            return {}
        best = copy.deepcopy(self.method.scored())
        best.load_state_dict(kept["method"])
        return self.scored(best).figures

    def conclude(self) -> Evaluation:
        """Score what else the training gave, and keep it; its name goes before those of scores."""
        metrics: dict[str, float] = {}
        figures: dict[str, Any] = {}
        for name, other in self.method.conclude(self.batches).items():
            checkpoint.save(self.plan.folder / name, self.update, {"method": other.state_dict()})
            found = self.scored(other)
            metrics.update({f"{name}_{metric}": value for metric, value in found.metrics.items()})
            figures.update({f"{name}_{figure}": value for figure, value in found.figures.items()})
        return Evaluation(metrics, figures)

    def save(self) -> None:
        window = self.window.state()  # first: raises before anything bad is kept
        average = None if self.average is None else self.average.state_dict()
        state = {
            "method": self.method.state_dict(),
            "optimizers": {name: state_of(o) for name, o in self.optimizers.items()},
            "scaler": self.mechanics.scaler.state_dict(),
            "average": average,
            "counters": self.counters,
            "best": self.best,
            "window": window,
            # Draws are functions of the update; torch's own state serves code that ignores that.
            "rng": torch.get_rng_state(),
        }
        checkpoint.save(self.plan.folder / "checkpoints", self.update, state)

    def restore(self, state: dict[str, Any]) -> None:
        self.method.load_state_dict(state["method"])
        for name, optimizer in self.optimizers.items():
            load_state(optimizer, state["optimizers"][name])
        self.mechanics.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.counters, self.best = state["counters"], state["best"]
        self.window.restore(state["window"])
        torch.set_rng_state(state["rng"])
