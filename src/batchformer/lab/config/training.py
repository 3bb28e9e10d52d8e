"""How a run is trained: plain, frozen, typed values; nothing here needs torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def require(condition: bool, what: str) -> None:
    """Raise a ValueError that says `what` unless the condition holds, before any work starts."""
    if not condition:
        raise ValueError(f"Not possible: {what}.")


# Settings declare their limits


def limited(default: Any, allowed: Callable[[Any], bool], otherwise: str) -> Any:
    """A setting that refuses values that are not allowed; `otherwise` ends the error message."""
    return dataclasses.field(default=default, metadata={"allowed": allowed, "otherwise": otherwise})


def at_least(bound: float, default: float | None) -> Any:
    """A setting with a least value, unless it is None."""
    return limited(default, lambda v: v is None or bool(v >= bound), f", below {bound}")


def above_zero(default: float) -> Any:
    """A setting that must be above 0."""
    return limited(default, lambda value: bool(value > 0), " and must be above 0")


def zero_to_one(default: float) -> Any:
    """A setting from 0 to 1."""
    return limited(default, lambda value: bool(0 <= value <= 1), ", outside [0, 1]")


def below_one(default: float) -> Any:
    """A setting from 0 to 1, without 1."""
    return limited(default, lambda value: bool(0 <= value < 1), ", outside [0, 1)")


def require_limits(settings: Any, group: str) -> None:
    """Refuse a value of another type, of no declared choice, or outside the declared limits.

    Args:
        group: as in ``--group.setting``; empty for settings of the recipe itself.
    """
    kinds = _declared(type(settings))
    for field in dataclasses.fields(settings):
        value, kind, otherwise = getattr(settings, field.name), kinds[field.name], ""
        if not _is_of(value, kind):
            otherwise = f"; it takes {_in_words(kind)}"
        elif "allowed" in field.metadata and not field.metadata["allowed"](value):
            otherwise = field.metadata["otherwise"]
        if otherwise:
            option = f"{group}.{field.name.replace('_', '-')}".removeprefix(".")
            raise ValueError(f"Not possible: {option} is {value!r}{otherwise}.")


_declared: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a declared type. A float is finite; a whole number may stand for it."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, (int, float)) and abs(value) < math.inf
    if isinstance(kind, type):
        return isinstance(value, kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple) or (inner[-1] is not Ellipsis and len(value) != len(inner)):
            return False
        return all(_is_of(one, inner[0]) for one in value)
    if origin in (Union, UnionType):
        return any(_is_of(value, one) for one in inner)
    return isinstance(value, origin)


def _in_words(kind: Any) -> str:
    """A declared type in words.

    >>> _in_words(float | None), _in_words(Literal["ddp", "fsdp"])
    ('a finite number or NoneType', 'ddp or fsdp')
    """
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        return f"a tuple of {_in_words(inner[0])}"
    if inner:
        return " or ".join(one if isinstance(one, str) else _in_words(one) for one in inner)
    return "a finite number" if kind is float else str(kind.__name__)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer."""

    name: Literal["sgd", "adam", "adamw", "lars"] = "sgd"
    """Which optimizer."""
    lr: float = above_zero(0.1)
    """Learning rate of the network; BatchFormer's is this times module.lr-factor."""
    momentum: float = below_one(0.9)
    """Momentum of SGD and LARS."""
    nesterov: bool = False
    """Nesterov momentum for SGD."""
    betas: tuple[float, float] = limited(
        (0.9, 0.999), lambda betas: all(0 <= beta < 1 for beta in betas), ", not each in [0, 1)"
    )
    """Moment decay of Adam and AdamW."""
    weight_decay: float = at_least(0, 5e-4)
    """Weight decay."""
    module_weight_decay: float | None = at_least(0, None)
    """Weight decay of BatchFormer; by default that of the network. In a long training at the
    network's rate, decay may shrink the encoder until samples no longer influence one another; the
    report then says so."""
    decayed: Literal["all", "matrices"] = "all"
    """Whether parameters of one dimension, biases and scales of normalisation, are decayed too;
    LARS adapts the rates of those that are decayed."""
    trust: float = above_zero(0.001)
    """LARS: the trust coefficient."""

    def __post_init__(self) -> None:
        require_limits(self, "optim")
        require(
            not (self.name == "sgd" and self.nesterov) or self.momentum > 0,
            "optim.nesterov needs an optim.momentum above 0; set one, or optim.no-nesterov",
        )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over time, as a multiple of its configured value."""

    kind: Literal["constant", "cosine", "multistep", "power"] = "cosine"
    """Shape after the warm-up; cosine falls to the floor, power is (1 + rate t)^-power."""
    floor: float = zero_to_one(0.0)
    """Multiple at which the cosine ends."""
    per: Literal["update", "epoch"] = "update"
    """Whether time is counted in updates or in epochs (constant within an epoch)."""
    warmup: int = at_least(0, 0)
    """Units (updates or epochs) of linear warm-up."""
    warmup_from: float = at_least(0, 0.0)
    """Multiple at which the warm-up starts."""
    warmup_overshoot: int = at_least(0, 0)
    """Units for which the warm-up goes on rising past 1; 1 gives PaCo's released code on CIFAR,
    whose eleventh epoch has 1.1 times the rate."""
    milestones: tuple[int, ...] = ()
    """Units after which a multistep schedule drops."""
    gamma: float = at_least(0, 0.1)
    """Factor of each drop."""
    rate: float = at_least(0, 2e-4)
    """Of the power: how fast time runs."""
    power: float = at_least(0, 0.75)
    """Of the power: its exponent."""
    ahead: int = at_least(0, 0)
    """Units by which the schedule runs ahead; 1 gives schedulers stepped before the epoch."""
    restart: int = at_least(0, 0)
    """Update at which the optimizer forgets its moments and the schedule begins again, over the
    updates that are left: IRM and V-REx, where their penalty sets in. 0: never."""

    def __post_init__(self) -> None:
        require_limits(self, "schedule")
        require(
            not self.warmup_overshoot or self.warmup > 0,
            "schedule.warmup-overshoot needs a schedule.warmup",
        )
        rising = list(self.milestones) == sorted(set(self.milestones))
        require(rising, f"schedule.milestones {self.milestones} must rise")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The length of training, its precision, and how updates are made."""

    batch_size: int = at_least(0, 128)
    """Samples of one update; also the number of samples that attend to one another. 0: 32 of each
    domain, with data.sampler domains."""
    updates: int = at_least(1, 1000)
    """Optimizer steps in all, unless train.epochs says how many."""
    epochs: int = at_least(0, 0)
    """Passes over the training data; 0: as long as train.updates says."""
    eval_epochs: int = at_least(1, 1)
    """With train.epochs: passes between evaluations, unless train.eval-every says otherwise."""
    drop_last: bool = False
    """Leave out the last, smaller batch of an epoch. CGE and CompCos always leave out a last batch
    of a single sample."""
    eval_every: int = at_least(0, 0)
    """Updates between evaluations; 0 evaluates at the end only."""
    checkpoint_every: int = at_least(0, 0)
    """Updates between checkpoints; 0 means as often as evaluations."""
    log_every: int = at_least(1, 50)
    """Updates between training records."""
    select_on: Literal["last", "val", "test"] = "last"
    """Which evaluation is reported: the last, the best on validation data, or the best on the test
    set. Not all tasks have validation data; some papers choose on the test set."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = "fp32"
    """Autocast type; fp16 scales the loss. tf32 is fp32 in which a GPU rounds the factors of matrix
    products and convolutions to 10 bits; fp32 rounds none. fp64 has weights and images in double
    precision: slow, and for comparing whole trainings, in which other roundings grow to other
    results."""
    accumulate: int = at_least(1, 1)
    """Parts a batch is split into. The parts do not attend to one another."""
    clip_norm: float = at_least(0, 0.0)
    """Largest gradient norm; 0 does not clip."""
    ema: float = below_one(0.0)
    """Decay of the weight average that is evaluated; 0 evaluates the weights themselves."""
    loss_multiplier: float = above_zero(1.0)
    """Factor on the loss, for the controls of the released code's loss scale."""
    compile: bool = False
    """Compile the step."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several ranks: whether each holds all of the network (DistributedDataParallel), or a
    part of it (FSDP2), for networks that do not fit on one device."""
    sync_norm: bool = False
    """With several ranks: batch normalisation by the statistics of all, not of each rank's own."""
    capture: bool = True
    """Capture the update once as a CUDA graph and replay it, where that is possible."""
    channels_last: bool = False
    """Memory format of images and convolutions."""
    deterministic: bool = False
    """Only deterministic kernels."""
    workers: int | None = at_least(0, None)
    """Processes that read image files; 0: the training process. By default one for each core."""
    damaged: Literal["raise", "skip"] = "raise"
    """What a training image file that cannot be read does: end the run, which names it, or give its
    place to the next image of the batch, named once. One that is scored always ends the run."""
    figures: bool = True
    """Measure at the end what the figures of samples and their relations are drawn from. This takes
    up to 4,096 test images, and may take minutes on a CPU. Without it, `batchformer show FIGURE RUN
    --compute` measures it later."""

    def __post_init__(self) -> None:
        require_limits(self, "train")
        most = self.batch_size or self.accumulate
        require(self.accumulate <= most, "train.accumulate exceeds the batch")

    def in_updates(self, per_epoch: int) -> TrainConfig:
        """The same length, counted in updates.

        >>> short = TrainConfig(epochs=6, eval_epochs=2).in_updates(per_epoch=40)
        >>> short.updates, short.eval_every
        (240, 80)
        """
        if not self.epochs:
            return self
        every = self.eval_every or self.eval_epochs * per_epoch
        return replace(self, updates=self.epochs * per_epoch, eval_every=every, epochs=0)
