"""Values that cannot work are refused before any work starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig


def _any(value: Any) -> Any:
    """A value that a type checker would refuse: recipes pass settings by name, unchecked."""
    return value


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OptimConfig(lr=0), "optim.lr is 0"),
        (lambda: OptimConfig(momentum=1.0), "optim.momentum"),
        (lambda: OptimConfig(weight_decay=-1), "optim.weight-decay"),
        (lambda: OptimConfig(betas=(0.9, 1.0)), r"optim\.betas is \(0\.9, 1\.0\), not each in"),
        (lambda: OptimConfig(module_weight_decay=-1), "optim.module-weight-decay is -1, below 0"),
        (lambda: OptimConfig(momentum=0, nesterov=True), "set one, or optim.no-nesterov"),
        (lambda: ScheduleConfig(warmup=-1), "schedule.warmup"),
        (lambda: ScheduleConfig(warmup_overshoot=1), "warmup-overshoot needs a schedule.warmup"),
        (lambda: ScheduleConfig(warmup=3, warmup_overshoot=-1), "warmup-overshoot is -1, below 0"),
        (lambda: ScheduleConfig(warmup_from=-0.5), "schedule.warmup-from is -0.5, below 0"),
        (lambda: ScheduleConfig(warmup_from=math.nan), "schedule.warmup-from is nan"),
        (lambda: ScheduleConfig(gamma=-1), "schedule.gamma"),
        (lambda: ScheduleConfig(power=math.nan), "schedule.power"),
        (lambda: ScheduleConfig(ahead=-1), "schedule.ahead"),
        (lambda: ScheduleConfig(milestones=(3, 1)), "must rise"),
        (lambda: TrainConfig(batch_size=-1), "train.batch-size"),
        (lambda: TrainConfig(updates=0), "train.updates"),
        (lambda: TrainConfig(epochs=-1), "train.epochs"),
        (lambda: TrainConfig(eval_epochs=0), "train.eval-epochs"),
        (lambda: ScheduleConfig(restart=-1), "schedule.restart"),
        (lambda: ScheduleConfig(rate=-1), "schedule.rate"),
        (lambda: TrainConfig(batch_size=4, accumulate=5), "train.accumulate exceeds the batch"),
        (lambda: TrainConfig(accumulate=-1), "train.accumulate is -1, below 1"),
        (lambda: TrainConfig(loss_multiplier=0), "train.loss-multiplier is 0 and must be above 0"),
        (lambda: TrainConfig(loss_multiplier=math.nan), "train.loss-multiplier is nan"),
        (lambda: TrainConfig(ema=1.0), "train.ema"),
        (lambda: TrainConfig(workers=-1), "train.workers is -1"),
        (lambda: TrainConfig(updates=_any(2.5)), "train.updates is 2.5; it takes int"),
        (lambda: TrainConfig(updates=True), "train.updates is True"),
        (lambda: TrainConfig(batch_size=_any("64")), "train.batch-size is '64'"),
        (lambda: TrainConfig(compile=_any("no")), "train.compile is 'no'; it takes bool"),
        (lambda: TrainConfig(select_on=_any("vall")), "select-on is 'vall'; .*last or val or test"),
        (lambda: OptimConfig(betas=_any((0.9,))), "optim.betas is"),
        (lambda: OptimConfig(lr=math.inf), "optim.lr is inf; it takes a finite number"),
        (lambda: ScheduleConfig(milestones=_any([3, 1])), "takes a tuple of int"),
        (lambda: ScheduleConfig(milestones=_any((3, 1.5))), "takes a tuple of int"),
    ],
)
def test_impossible_values(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
