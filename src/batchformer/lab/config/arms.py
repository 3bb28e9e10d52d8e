"""The sides of a comparison: each arm is the recipe with one thing changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from batchformer.lab.config.consistency import require_training
from batchformer.lab.config.methods import (
    MethodEntry,
    find_method,
    loss_change,
    methods_that,
    without_batchformer,
)
from batchformer.lab.config.recipe import Change, Recipe, with_settings
from batchformer.lab.config.settings import Grouping, MethodConfig, MixedClasses
from batchformer.lab.config.training import ScheduleConfig, TrainConfig, require

S = TypeVar("S", MethodConfig, ScheduleConfig, TrainConfig)
#: The arms that the paper compares.
BASELINE, MAIN = "baseline", "batchformer"
#: Settings of the training that count epochs.
_EPOCHS = ("epochs", "eval_epochs")


_baseline = with_settings(module={"enabled": False})


def _baseline_with_loss(factor: float) -> Change:
    def change(recipe: Recipe) -> Recipe:
        loss = {"loss_multiplier": recipe.train.loss_multiplier * factor}
        return _baseline(recipe).changed(train=loss)

    return change


def _twice_the_batch(recipe: Recipe) -> Recipe:
    """The baseline with twice the batch size and the same number of updates."""
    _require_one_loss(recipe, "baseline_batch2x")
    train = recipe.train
    require(
        train.batch_size > 0 and not getattr(recipe.data, "epoch", 0),
        "baseline_batch2x doubles a number of images, and here a batch or an epoch is counted by "
        "domains; leave this arm out, or set train.batch-size, and data.epoch 0",
    )
    # An epoch then has half the updates, so settings that count epochs are doubled.
    longer = _doubled(train, "batch_size", *(_EPOCHS if train.epochs else ()))
    by_epoch = recipe.schedule.per == "epoch"
    schedule = _stretched(recipe.schedule) if by_epoch else recipe.schedule
    return _over_twice_the_epochs(recipe, longer, schedule)


def _twice_the_updates(recipe: Recipe) -> Recipe:
    """The baseline trained twice as long, with as many evaluations and the schedule stretched."""
    _require_one_loss(recipe, "baseline_updates2x")
    length = _EPOCHS if recipe.train.epochs else ("updates",)
    longer = _doubled(recipe.train, *length, "eval_every", "checkpoint_every")
    return _over_twice_the_epochs(recipe, longer, _stretched(recipe.schedule))


def _over_twice_the_epochs(recipe: Recipe, train: TrainConfig, schedule: ScheduleConfig) -> Recipe:
    """The baseline with these settings; settings of its method that count epochs are doubled."""
    own = (f for kind in find_method(recipe.method).settings for f in dataclasses.fields(kind))
    hyper = _doubled(recipe.hyper, *(f.name for f in own if f.metadata.get("epochs")))
    return _baseline(recipe).changed(hyper=hyper, train=train, schedule=schedule)


def _require_one_loss(recipe: Recipe, arm: str) -> None:
    change = loss_change(recipe.method)
    require(
        change is None,
        f"{arm} changes how long an epoch or a training is, and the loss of {recipe.method} "
        f"changes at an epoch (hyper.{change and change[0]}); leave this arm out",
    )


def _stretched(schedule: ScheduleConfig) -> ScheduleConfig:
    """A schedule of the same shape over twice the time."""
    milestones = tuple(2 * unit for unit in schedule.milestones)
    longer = _doubled(schedule, "warmup", "warmup_overshoot", "ahead")
    rate = schedule.rate / 2 if schedule.kind == "power" else schedule.rate
    return dataclasses.replace(longer, milestones=milestones, rate=rate)


def _doubled(settings: S, *names: str) -> S:
    changes: dict[str, Any] = {name: 2 * getattr(settings, name) for name in names}
    return dataclasses.replace(settings, **changes)


def _with_mates(arm: str, enabled: bool) -> Change:
    """With or without BatchFormer, on batches in which every image has another of its class."""

    def change(recipe: Recipe) -> Recipe:
        sampler = getattr(recipe.data, "sampler", "none")
        require(
            recipe.data.long_tailed and sampler == "shuffle",
            f"{arm} gives a mate to each image of a shuffled order of one domain, and "
            f"{recipe.name} has data.sampler {sampler}; leave this arm out, or set data.sampler "
            "shuffle where the data has classes of one domain",
        )
        side = recipe if enabled else _baseline(recipe)
        return side.changed(data={"sampler": "mates"})

    return change


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    change: Change  # makes the recipe that this arm trains
    purpose: str  # what it is for, in a line
    colour: str  # in figures and pages; at least 3:1 against the light and against the dark page
    # Whether the arm makes sense for a method
    fits: Callable[[MethodEntry], bool] = lambda entry: True
    why_not: str = ""  # why it makes no sense for others; ``{method}`` stands for their name


def _reads(settings: type[Any], why_not: str) -> dict[str, Any]:
    """An arm for methods that read these settings."""
    return {"fits": lambda entry: settings in entry.settings, "why_not": why_not}


def _sample_loss(what: str) -> dict[str, Any]:
    """An arm for methods whose loss is a mean over samples."""
    why_not = f"{what}, and the loss of {{method}} is no mean over samples with soft labels"
    return {"fits": lambda entry: entry.sample_loss, "why_not": why_not}


_MIXED = "puts BatchFormer on some classes only, which is for the first stage of ride, not {method}"
_CLASSES = "adds class rows to the batch"
_LABELS = "gives mixed rows labels of other samples"
_PAIRS = "puts pairs of one class into a batch"
#: Every arm by its name, in the order in which arms are shown.
ARMS: dict[str, Arm] = {
    BASELINE: Arm(_baseline, "the network alone, without BatchFormer", "#7a7f87"),
    MAIN: Arm(with_settings(), "BatchFormer as in the paper", "#1f7ac4"),
    "batchformer_self": Arm(
        with_settings(module={"attend": "self"}),
        "control: attention masked to the diagonal",
        "#d55e00",
    ),
    "batchformer_frozen": Arm(
        with_settings(module={"trained": False}), "control: the encoder stays untrained", "#0c9268"
    ),
    "batchformer_mixed_only": Arm(
        with_settings(module={"streams": "mixed_only"}), "ablation: no shared classifier", "#c0609a"
    ),
    "batchformer_identity": Arm(
        with_settings(module={"encoder": "none"}),
        "control: two streams inside the network, no encoder",
        "#2f8f9d",
    ),
    "batchformer_official_loss": Arm(
        with_settings(module={"loss_scale": "official"}),
        "the released code's loss: both halves and their mean, three times the paper's",
        "#c24a4a",
    ),
    "batchformer_official_grouping": Arm(
        with_settings(hyper={"irm_grouping": "official"}),
        "irm: the released code's parts of a batch, which mix domains",
        "#4f7f3a",
        **_reads(
            Grouping,
            "is how the released code of irm cuts a batch into parts, and {method} has no such "
            "parts",
        ),
    ),
    "batchformer_many": Arm(
        with_settings(hyper={"mixed_classes": "many"}),
        "ride: a first stage of two, with BatchFormer on many-shot classes alone",
        "#a3553d",
        **_reads(MixedClasses, _MIXED),
    ),
    "batchformer_not_many": Arm(
        with_settings(hyper={"mixed_classes": "not_many"}),
        "ride: a first stage of two, with BatchFormer on all but many-shot classes",
        "#2f8a9c",
        **_reads(MixedClasses, _MIXED),
    ),
    "class_context": Arm(
        with_settings(module={"context": "classes"}),
        "running means of all classes join the batch as rows that samples attend to",
        "#3f8f6a",
        **_sample_loss(_CLASSES),
    ),
    "class_context_self": Arm(
        with_settings(module={"context": "classes", "attend": "self"}),
        "control: class_context with attention masked to the diagonal",
        "#b5651d",
        **_sample_loss(_CLASSES),
    ),
    "mates": Arm(
        _with_mates("mates", enabled=True),
        "BatchFormer on batches in which every image has another of its class",
        "#4a7fa5",
        **_sample_loss(_PAIRS),
    ),
    "attention_labels": Arm(
        with_settings(module={"mixed_labels": "attention"}),
        "the target of a mixed row is the labels of its batch, weighted by its attention",
        "#a8518a",
        **_sample_loss(_LABELS),
    ),
    "attention_labels_random": Arm(
        with_settings(module={"mixed_labels": "random"}),
        "control: attention_labels with the weights of other samples permuted",
        "#8c7a2e",
        **_sample_loss(_LABELS),
    ),
    "views": Arm(
        with_settings(module={"attend": "self", "views": 4}),
        "four noisy passes of batchformer_self, which weigh as one mixed stream",
        "#b0487a",
        **_sample_loss("has four mixed streams"),
    ),
    "dropout_stream": Arm(
        with_settings(module={"encoder": "dropout"}),
        "control: no encoder; the mixed stream is the plain features after dropout",
        "#5b8c3a",
        **_sample_loss("has dropout in place of the encoder"),
    ),
    "norm_stream": Arm(
        with_settings(module={"encoder": "norm", "dropout": 0.0}),
        "no encoder; the mixed stream is the plain features, each row normalised",
        "#2a8a86",
        **_sample_loss("has a normalisation in place of the encoder"),
    ),
    "norm_dropout_stream": Arm(
        with_settings(module={"encoder": "norm"}),
        "no encoder; the mixed stream is the plain features after dropout, each row normalised",
        "#a0527d",
        **_sample_loss("has dropout and a normalisation in place of the encoder"),
    ),
    "random_weights": Arm(
        with_settings(module={"enabled": False}, start="", weights=""),
        "control: features of an untrained network, for probes of trained ones",
        "#5f6fb5",
    ),
    "baseline_loss1.5x": Arm(
        _baseline_with_loss(1.5), "control: the baseline with 1.5 times its loss", "#8a6bd1"
    ),
    "baseline_loss3x": Arm(
        _baseline_with_loss(3.0), "control: the baseline with 3 times its loss", "#9a7200"
    ),
    "baseline_batch2x": Arm(
        _twice_the_batch, "control: the baseline with twice the images in each update", "#a0522d"
    ),
    "baseline_updates2x": Arm(
        _twice_the_updates, "control: the baseline trained for twice the updates", "#6b7d1e"
    ),
    "baseline_mates": Arm(
        _with_mates("baseline_mates", enabled=False),
        "control: the baseline on the batches of mates",
        "#8f6a4f",
        **_sample_loss(_PAIRS),
    ),
    "baseline_dropout": Arm(
        with_settings(module={"enabled": False}, hyper={"feature_dropout": 0.5}),
        "control: the baseline with dropout 0.5 before the classifier",
        "#7b68c8",
        **_sample_loss("has dropout before the classifier"),
    ),
    "baseline_norm": Arm(
        with_settings(module={"enabled": False}, hyper={"feature_norm": True}),
        "control: the baseline whose classifier normalises each row of features, at test too",
        "#4f7f4f",
        **_sample_loss("normalises features before the classifier"),
    ),
}


def with_arm(recipe: Recipe, arm: str) -> Recipe:
    """The recipe as this arm trains it."""
    if arm not in ARMS:
        raise ValueError(f"There is no arm {arm!r}; there are {', '.join(ARMS)}.")
    _require_fitting(recipe, arm)
    with_module = ARMS[arm].change(recipe.changed(module={"enabled": True})).module.enabled
    require(
        recipe.module.enabled or not with_module,
        f"module.no-enabled takes BatchFormer out, so the arm {arm} would be the baseline under "
        "another name; leave it on, or train --arms baseline with compare, --arm baseline with "
        "train",
    )
    changed = ARMS[arm].change(recipe)
    require(
        arm == MAIN or not changed.module.enabled or changed != ARMS[MAIN].change(recipe),
        f"{recipe.name} with these settings is trained so already: the arm {arm} would be {MAIN} "
        "under another name; leave it out",
    )
    require_training(changed.method, changed.module)
    _require_weights(recipe, arm)
    require(
        not (changed.module.enabled and arms_start_equal(changed)),
        f"BatchFormer takes no part in {recipe.method}, and {recipe.name} begins with the same "
        f"weights in every arm, so the arm {arm} would be the baseline under another name. "
        "Train the baseline alone: --arms baseline with compare, --arm baseline with train; or "
        "start every arm from the run of the same arm, by --start RECIPE without an arm",
    )
    return changed


def arms_start_equal(recipe: Recipe) -> bool:
    """Whether all arms would be the same training: BatchFormer is absent, weights are the same."""
    named = "/" in recipe.start  # RECIPE/ARM: every arm starts from this one run
    return without_batchformer(recipe.method) and (not recipe.start or named)


def usual_arms(recipe: Recipe) -> tuple[str, ...]:
    """The arms of a comparison that names none; a single training takes the last of them.

    >>> from batchformer.lab.recipes import find_recipe
    >>> usual_arms(find_recipe("voc_moco_v3")), usual_arms(find_recipe("my_voc"))
    (('baseline', 'batchformer'), ('baseline',))
    """
    closed_form = find_method(recipe.method).batchformer == "closed_form"
    alone = closed_form or arms_start_equal(recipe)
    return (BASELINE,) if alone else (BASELINE, MAIN)


def _require_fitting(recipe: Recipe, arm: str) -> None:
    """Refuse an arm that makes no sense for the method."""
    fitting = methods_that(ARMS[arm].fits)
    require(
        recipe.method in fitting,
        f"{arm} {ARMS[arm].why_not.format(method=recipe.method)}; leave this arm out, or set "
        f"--method {' or '.join(fitting)}",
    )


def _require_weights(recipe: Recipe, arm: str) -> None:
    """Refuse an arm that would start from other weights than its name says."""
    trained = bool(recipe.start or recipe.weights)
    if find_method(recipe.method).given == "features":
        require(
            trained or arm == "random_weights",
            f"{recipe.name} measures features that are learnt elsewhere, and names none, so the "
            f"arm {arm} would be an untrained network under that name; name a run by --start "
            "RECIPE, a file by --weights FILE, or the arm random_weights",
        )
    else:
        require(
            trained or arm != "random_weights",
            f"{recipe.name} begins with random weights in every arm, so the arm "
            "random_weights would be the baseline under another name; it is for recipes that start "
            "from trained weights, such as linear_probe and knn on features of a run",
        )
