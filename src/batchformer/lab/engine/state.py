"""The state of a training: its updates, evaluations, checkpoints, and the best score."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.engine.checkpoint import (
    explain_mismatch,
    load_model,
    load_newest_on_rank_zero,
    restore_training,
    save,
    state_of_model,
    state_of_training,
    sync_state,
)
from batchformer.lab.engine.cuda_graph import Captured, Eager, synchronize, why_eager
from batchformer.lab.engine.distributed.gradients import Parallel
from batchformer.lab.engine.distributed.rank_zero import max_over_ranks
from batchformer.lab.engine.distributed.sharding import weights_are_finite
from batchformer.lab.engine.interrupt import Interrupted, StopRequest
from batchformer.lab.engine.log import ADVICE, DivergedError, LossWindow, Progress, RunLog
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optim import lr_factor, reset_state, set_lr
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep, predict_in_double, to_double
from batchformer.lab.engine.swad import STATISTICS_BATCHES, Swad, SwadSettings
from batchformer.lab.metrics.generalized import NaNScoreError
from batchformer.nn.exchange import is_rank_zero, rank, world_size
from batchformer.nn.randomness import seed_for
from batchformer.plug.insertion import is_sharded


@dataclass(frozen=True)
class Evaluation:
    """What a task measures: scores by name, the headline first, and arrays for its figures.

    At the end of a training it also has findings other than scores, by the kind of their record,
    and the training time in seconds, resumed parts included.
    """

    metrics: dict[str, float]
    figures: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    def followed_by(self, other: Evaluation, name: str) -> Evaluation:
        """This evaluation, then the other one, whose names get the prefix ``without_NAME_``.

        >>> Evaluation({"all": 3.0}).followed_by(Evaluation({"all": 2.0}), "swad").metrics
        {'all': 3.0, 'without_swad_all': 2.0}
        """
        without = f"without_{name}_"
        return Evaluation(
            {**self.metrics, **{without + key: value for key, value in other.metrics.items()}},
            {**self.figures, **{without + key: value for key, value in other.figures.items()}},
            self.findings,
        )


Evaluate = Callable[[Method, OptimizerStep], Evaluation]

#: Folders of the reported network, if that is not the last one.
BEST, SWAD = "best", "swad"


@dataclass(frozen=True)
class Plan:
    """The settings of a training, its device and its folder.

    Args:
        on_start: called on every rank before the first update, with the update that the training
            starts at or resumes from.
    """

    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig
    seed: int
    folder: Path
    device: torch.device
    title: str = "run"
    quiet: bool = False
    wandb_project: str | None = None
    swad: SwadSettings | None = None
    on_start: Callable[[int], None] | None = None


class WeightEMA(AveragedModel):
    """Exponential moving average of parameters and buffers; a CUDA graph can capture its update.

    torch's own reads from the device at each update whether it is the first.

    Args:
        decay: share of the average that an update keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        mean: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        super().__init__(model, multi_avg_fn=mean, use_buffers=True)
        self._mean = mean

    def update_parameters(self, model: nn.Module) -> None:
        """Add the weights of the model after one more update."""
        if int(self.n_averaged) == 0:  # a counter on the CPU
            super().update_parameters(model)
            return
        pairs: dict[Any, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        mine = chain(self.module.parameters(), self.module.buffers())
        theirs = chain(model.parameters(), model.buffers())
        for own, new in zip(mine, theirs, strict=True):
            if not own.is_floating_point():
                own.detach().copy_(new)  # torch would round the mean of integers towards zero
                continue
            means, values = pairs[own.device, own.dtype]
            means.append(own.detach())
            values.append(new.detach())
        for means, values in pairs.values():
            self._mean(means, values, None)
        self.n_averaged += 1


def is_better(metrics: Mapping[str, float], best: Mapping[str, float], select_on: str) -> bool:
    """Whether an evaluation is the best so far; of equal ones the earlier stays the best.

    A NaN headline, which could not be measured, is worse than any number.

    Args:
        metrics: scores by name, the headline first.
        best: those of the best evaluation before; empty at the first.
        select_on: ``val`` compares validation scores, anything else the headline.

    >>> is_better({"all": 60.0}, {"all": 50.0}, "last")
    True
    """
    decisive = _decisive(metrics, select_on)
    new, old = metrics[decisive], best.get(decisive, math.nan)
    return not best or new > old or (math.isnan(old) and not math.isnan(new))


def _decisive(metrics: Mapping[str, float], select_on: str) -> str:
    """The name of the score that is compared: the headline, or validation."""
    if select_on != "val":
        return next(iter(metrics))
    if math.isnan(metrics["val"]):
        raise ValueError(
            "train.select-on is val, but the validation score is NaN, so no evaluation is better "
            "than another. Set train.select-on last."
        )
    return "val"


class TrainingState:
    """The state of a training, and what changes it."""

    def __init__(
        self,
        method: Method,
        batches: Batches,
        evaluate: Evaluate,
        plan: Plan,
        log: RunLog,
        bar: Progress,
        found: dict[str, Any] | None,
    ) -> None:
        self.method, self.batches, self.evaluator, self.plan = method, batches, evaluate, plan
        self.log, self.bar = log, bar
        method.epochs = plan.train.updates / batches.per_epoch
        method.begin_training(plan.train.updates)
        self.optimizers: dict[str, Optimizer] = method.optimizers(plan.optim)
        self.optimizer_step = OptimizerStep(plan.train, plan.device)
        if world_size() > 1:
            sharded = plan.train.parallel == "fsdp"
            self.optimizer_step.parallel = Parallel(self.optimizers.values(), sharded)
        self.average = WeightEMA(method, plan.train.ema) if plan.train.ema else None
        self.swad = None if plan.swad is None else Swad(method, plan.swad)
        self.counters: dict[str, Any] = {"update": 0, "seconds": 0.0}
        self.best: dict[str, float] = {}
        self.window = LossWindow()
        if found is not None:
            with explain_mismatch(plan.folder):
                restore_training(self, found)
        self.began = time.perf_counter() - float(self.counters["seconds"])
        log.rewind(self.update)
        bar.resume(self.update)
        method.begin_epoch(self.update // batches.per_epoch)
        self.updater = self._updater()

    def _updater(self) -> Captured | Eager:
        """Choose captured or eager updates; on a GPU, print one line that says so and why."""
        plan, reason = self.plan, why_eager(self.plan.train, self.plan.device, self.method)
        how = "updates are eager" if reason else "updates are captured as a CUDA graph"
        if plan.device.type == "cuda":
            self.bar.note(f"{plan.title}: {how}" + (f": {reason}" if reason else ""))
        if reason:
            return Eager(self.work, plan.device)
        return Captured(self.work, plan.device, self.method.phase, self.bar.say)

    @property
    def update(self) -> int:
        return int(self.counters["update"])

    @property
    def seconds(self) -> float:
        """Training time, resumed parts included, without work that a kill lost."""
        return time.perf_counter() - self.began

    def train(self, request: StopRequest) -> Generator[int, None, Evaluation]:
        """Train to the end; however it ends, the device has finished its work."""
        try:
            evaluation = yield from self._train(request)
        except BaseException:
            with suppress(RuntimeError):  # keep the first error
                self.release()
            raise
        self.release()
        return evaluation

    def release(self) -> None:
        """Wait for the device, then free the graphs."""
        synchronize(self.plan.device)
        if isinstance(self.updater, Captured):
            self.updater.release()

    def _train(self, request: StopRequest) -> Generator[int, None, Evaluation]:
        train, evaluation = self.plan.train, Evaluation({})
        eval_every = train.eval_every or train.updates
        save_every = train.checkpoint_every or eval_every
        if train.compile:
            self.method.compile_step()
        self.method.train()
        while True:
            update, finished = self.update, self.update >= train.updates
            evaluate_now = finished or (update > 0 and update % eval_every == 0)
            if self.window.rows and (evaluate_now or update % train.log_every == 0):
                self.record()
            # A signal to one rank stops all of them.
            signal = max_over_ranks(request.signal_number or 0)
            # Save before the evaluation: a run killed in between repeats only the evaluation.
            if signal or finished or (update > 0 and update % save_every == 0):
                self.save()
            if signal:
                words = f"{self.plan.title}: stopped and saved at update {update}."
                raise Interrupted(signal, f"{words} The same command goes on from there.")
            if evaluate_now:
                evaluation = self.evaluate()
            if finished:
                break
            self.one_update()
            yield self.update
        self.method.release_step()
        averaged = None if self.swad is None else self.conclude(self.swad)
        if train.select_on != "last":
            evaluation = Evaluation(self.best, self.figures_of_best())
        if averaged is not None:
            evaluation = averaged.followed_by(evaluation, SWAD)
        return dataclasses.replace(evaluation, seconds=self.seconds)

    def one_update(self) -> None:
        plan, method, update = self.plan, self.method, self.update
        per_epoch = self.batches.per_epoch
        if update % per_epoch == 0:
            method.begin_epoch(update // per_epoch)
        batch = self.batches.batch(update)
        if update and update == plan.schedule.restart:
            for optimizer in self.optimizers.values():
                reset_state(optimizer)
        factor = lr_factor(plan.schedule, update, plan.train.updates, per_epoch)
        for optimizer in self.optimizers.values():
            set_lr(optimizer, factor)
        # Rank 0 draws as a single process would. BatchFormer with exchange draws for all ranks.
        seed = seed_for(plan.seed, "dropout", update) + rank()
        losses = self.updater(self._in_format(batch), seed)
        self.counters["update"] = update + 1
        self.window.add(losses, plan.optim.lr * factor, len(batch["y"]))

    def work(self, batch: Batch) -> dict[str, Tensor]:
        """All that an update computes, and all that a CUDA graph captures."""
        if self.optimizer_step.parallel is not None:
            self.optimizer_step.parallel.enter(self.method.phase())
        losses = self.method.update(batch, self.optimizers, self.optimizer_step)
        self.method.after_update()
        if self.swad is not None:
            self.swad.add(self.method)
        if self.average is not None:
            self.average.update_parameters(self.method)
        return losses

    def _in_format(self, batch: Batch) -> Batch:
        if self.plan.train.precision == "fp64":
            batch = {name: to_double(value) for name, value in batch.items()}
        if not self.plan.train.channels_last:
            return batch
        return {
            name: value.contiguous(memory_format=torch.channels_last)
            if isinstance(value, Tensor) and value.ndim == 4
            else value
            for name, value in batch.items()
        }

    def record(self) -> None:
        """Write the mean losses since the last record; raises if one is NaN or infinite."""
        values = self.window.record()
        epoch = (self.update - 1) // self.batches.per_epoch
        self.log.write("train", epoch, self.update, values)
        self.bar.train(epoch, self.update, values["loss"], values["samples_per_s"])
        self.window = LossWindow(self.update)

    def evaluate(self) -> Evaluation:
        started = time.perf_counter()
        self.method.before_evaluation()
        trained: Any = self.method if self.average is None else self.average.module
        evaluation = self.score(trained)
        self.method.train()
        epoch = self.update // self.batches.per_epoch
        self.log.write("eval", epoch, self.update, evaluation.metrics)
        self.bar.evaluated(epoch, self.update, evaluation.metrics)
        if is_better(evaluation.metrics, self.best, self.plan.train.select_on):
            self.best = dict(evaluation.metrics)
            if self.plan.train.select_on != "last":
                self.write(BEST, {"method": state_of_model(trained)})
        if self.swad is not None:
            self.swad.tell(evaluation.metrics)
        self.window.pause(time.perf_counter() - started)
        return evaluation

    def score(self, trained: Method) -> Evaluation:
        sync_state(trained)
        trained.eval()
        double = self.plan.train.precision == "fp64"
        with torch.no_grad(), predict_in_double(trained) if double else nullcontext():
            try:
                return self.evaluator(trained, self.optimizer_step)
            except NaNScoreError as error:
                raise DivergedError(f"At update {self.update}, {error}. {ADVICE}") from error

    def figures_of_best(self) -> dict[str, Any]:
        """Arrays for the figures of the best network, which may be an earlier one."""
        kept = load_newest_on_rank_zero(self.plan.folder / BEST, self.bar.say)
        if kept is None:
            return {}
        # A sharded network cannot be copied; the training is over, so overwrite it.
        best = self.method if is_sharded(self.method) else copy.deepcopy(self.method)
        load_model(best, kept["method"])
        return self.score(best).figures

    def conclude(self, swad: Swad) -> Evaluation:
        """Save and score the averaged network, and record where the valley was."""
        steps = range(min(STATISTICS_BATCHES, self.batches.per_epoch))
        images = (self.batches.batch(step)["x"] for step in steps)
        double = self.plan.train.precision == "fp64"
        averaged = swad.averaged(self.method, map(to_double, images) if double else images)
        self.write(SWAD, {"method": state_of_model(averaged)})
        evaluation = self.score(averaged)
        values, words = swad.finding()
        if not values:
            return evaluation
        self.log.write(SWAD, self.update // self.batches.per_epoch, self.update, values)
        tell = self.bar.note if values["converged"] else self.bar.say
        tell(f"{self.plan.title}: {words}")
        return dataclasses.replace(evaluation, findings={SWAD: values})

    def save(self) -> None:
        synchronize(self.plan.device)
        self.counters["seconds"] = self.seconds
        state = state_of_training(self)  # raises if a loss is NaN or infinite
        # The last update may have broken weights, which only the next loss would show.
        if not weights_are_finite(self.method):
            raise DivergedError(
                f"A weight became NaN or infinite at update {self.update - 1}. The last good "
                f"checkpoint is kept. {ADVICE}"
            )
        self.write("checkpoints", state)

    def write(self, folder: str, state: dict[str, Any]) -> None:
        """Write a state of this update below the run's folder."""
        if is_rank_zero():
            save(self.plan.folder / folder, self.update, state)
