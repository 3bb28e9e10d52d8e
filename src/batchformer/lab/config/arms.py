"""The sides of a comparison: each arm is the recipe with one thing changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from batchformer.lab.config.methods import (
    find_method,
    loss_change,
    methods_that,
    require_training,
    without_batchformer,
)
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.settings import Grouping, MethodConfig, MixedClasses
from batchformer.lab.config.training import ScheduleConfig, TrainConfig, require

S = TypeVar("S", MethodConfig, ScheduleConfig, TrainConfig)
#: What counts a training in epochs.
_EPOCHS = ("epochs", "eval_epochs")


def _module(**changes: Any) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, module=dataclasses.replace(recipe.module, **changes))

    return change


def _hyper(**changes: Any) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, hyper=dataclasses.replace(recipe.hyper, **changes))

    return change


def _baseline(loss_multiplier: float = 1.0) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        module = dataclasses.replace(recipe.module, enabled=False)
        factor = recipe.train.loss_multiplier * loss_multiplier
        train = dataclasses.replace(recipe.train, loss_multiplier=factor)
        return dataclasses.replace(recipe, module=module, train=train)

    return change


def _twice_the_batch(recipe: Recipe) -> Recipe:
    """The baseline with twice the images in each of as many updates."""
    _require_one_loss(recipe, "baseline_batch2x")
    train = recipe.train
    require(
        train.batch_size > 0 and not getattr(recipe.data, "epoch", 0),
        "baseline_batch2x doubles a number of images, and here a batch or an epoch is counted by "
        "domains; leave this arm out, or set train.batch-size, and data.epoch 0",
    )
    # An epoch has half the updates then, so what is counted in epochs takes twice as many.
    longer = _doubled(train, "batch_size", *(_EPOCHS if train.epochs else ()))
    by_epoch = recipe.schedule.per == "epoch"
    schedule = _stretched(recipe.schedule) if by_epoch else recipe.schedule
    return _over_twice_the_epochs(recipe, longer, schedule)


def _twice_the_updates(recipe: Recipe) -> Recipe:
    """The baseline trained twice as long, by a schedule of the same shape, scored as often."""
    _require_one_loss(recipe, "baseline_updates2x")
    length = _EPOCHS if recipe.train.epochs else ("updates",)
    longer = _doubled(recipe.train, *length, "eval_every", "checkpoint_every")
    return _over_twice_the_epochs(recipe, longer, _stretched(recipe.schedule))


def _over_twice_the_epochs(recipe: Recipe, train: TrainConfig, schedule: ScheduleConfig) -> Recipe:
    """The baseline with these settings; what its method counts in epochs takes twice as many."""
    own = (f for kind in find_method(recipe.method).settings for f in dataclasses.fields(kind))
    hyper = _doubled(recipe.hyper, *(f.name for f in own if f.metadata.get("epochs")))
    return dataclasses.replace(_baseline()(recipe), hyper=hyper, train=train, schedule=schedule)


def _require_one_loss(recipe: Recipe, arm: str) -> None:
    change = loss_change(recipe.method)
    require(
        change is None,
        f"{arm} changes how long an epoch or a training is, and the loss of {recipe.method} "
        f"changes at an epoch (hyper.{change and change[0]}); leave this arm out",
    )


def _stretched(schedule: ScheduleConfig) -> ScheduleConfig:
    """The same shape over twice the units of time."""
    milestones = tuple(2 * unit for unit in schedule.milestones)
    longer = _doubled(schedule, "warmup", "warmup_overshoot", "ahead")
    rate = schedule.rate / 2 if schedule.kind == "power" else schedule.rate
    return dataclasses.replace(longer, milestones=milestones, rate=rate)


def _doubled(settings: S, *names: str) -> S:
    changes: dict[str, Any] = {name: 2 * getattr(settings, name) for name in names}
    return dataclasses.replace(settings, **changes)


def _random_weights(recipe: Recipe) -> Recipe:
    """Without BatchFormer, and without the weights that the recipe begins with."""
    return dataclasses.replace(_baseline()(recipe), start="", weights="")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Args:
        change: makes the recipe that this arm trains.
        purpose: what it is for, in a line.
        colour: in figures and pages; at least 3:1 against the light and against the dark page.
        needs: the settings that it changes, where only some methods read them.
        of_others: why it means nothing for other methods; ``{method}`` stands for their name.
    """

    change: Callable[[Recipe], Recipe]
    purpose: str
    colour: str
    needs: type[Any] | None = None
    of_others: str = ""


_MIXED = "has BatchFormer on some classes, as a first stage of ride may, and {method} on all"
#: Every arm by its name, in the order in which arms are shown.
ARMS: dict[str, Arm] = {
    "baseline": Arm(_baseline(), "the network alone, without BatchFormer", "#7a7f87"),
    "batchformer": Arm(_module(), "BatchFormer as in the paper", "#1f7ac4"),
    "batchformer_self": Arm(
        _module(attend="self"), "control: attention masked to the diagonal", "#d55e00"
    ),
    "batchformer_frozen": Arm(
        _module(trained=False), "control: the encoder stays untrained", "#0c9268"
    ),
    "batchformer_mixed_only": Arm(
        _module(streams="mixed_only"), "ablation: no shared classifier", "#c0609a"
    ),
    "batchformer_identity": Arm(
        _module(encoder="none"), "control: two streams inside the network, no encoder", "#2f8f9d"
    ),
    "batchformer_official_loss": Arm(
        _module(loss_scale="official"),
        "the released code's loss: both halves and their mean, three times the paper's",
        "#c24a4a",
    ),
    "batchformer_official_grouping": Arm(
        _hyper(irm_grouping="official"),
        "irm: the released code's parts of a batch, which mix domains",
        "#4f7f3a",
        needs=Grouping,
        of_others="is how the released code of irm cuts a batch into parts, and {method} has no "
        "such parts",
    ),
    "batchformer_many": Arm(
        _hyper(mixed_classes="many"),
        "ride: a first stage of two, with BatchFormer on many-shot classes alone",
        "#a3553d",
        needs=MixedClasses,
        of_others=_MIXED,
    ),
    "batchformer_not_many": Arm(
        _hyper(mixed_classes="not_many"),
        "ride: a first stage of two, with BatchFormer on all but many-shot classes",
        "#2f8a9c",
        needs=MixedClasses,
        of_others=_MIXED,
    ),
    "class_context": Arm(
        _module(context="classes"),
        "running means of all classes join the batch as rows that samples attend to",
        "#3f8f6a",
    ),
    "class_context_self": Arm(
        _module(context="classes", attend="self"),
        "control: class_context with attention masked to the diagonal",
        "#b5651d",
    ),
    "random_weights": Arm(
        _random_weights,
        "control: features of an untrained network, for probes of trained ones",
        "#5f6fb5",
    ),
    "baseline_loss1.5x": Arm(
        _baseline(1.5), "control: the baseline with 1.5 times its loss", "#8a6bd1"
    ),
    "baseline_loss3x": Arm(
        _baseline(3.0), "control: the baseline with 3 times its loss", "#9a7200"
    ),
    "baseline_batch2x": Arm(
        _twice_the_batch, "control: the baseline with twice the images in each update", "#a0522d"
    ),
    "baseline_updates2x": Arm(
        _twice_the_updates, "control: the baseline trained for twice the updates", "#6b7d1e"
    ),
}


def with_arm(recipe: Recipe, arm: str) -> Recipe:
    """The recipe as this arm trains it."""
    if arm not in ARMS:
        raise ValueError(f"There is no arm {arm!r}; there are {', '.join(ARMS)}.")
    _require_settings(recipe, arm)
    changed = ARMS[arm].change(recipe)
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
    """Whether all arms would train the same: from the same weights, without BatchFormer."""
    named = "/" in recipe.start  # RECIPE/ARM: every arm starts from this one run
    return without_batchformer(recipe.method) and (not recipe.start or named)


def usual_arms(recipe: Recipe) -> tuple[str, ...]:
    """The arms of a comparison that names none; the last is what a single training takes.

    >>> from batchformer.lab.recipes import find_recipe
    >>> usual_arms(find_recipe("voc_moco_v3")), usual_arms(find_recipe("my_voc"))
    (('baseline', 'batchformer'), ('baseline',))
    """
    closed_form = find_method(recipe.method).batchformer == "closed_form"
    alone = closed_form or arms_start_equal(recipe)
    return ("baseline",) if alone else ("baseline", "batchformer")


def _require_settings(recipe: Recipe, arm: str) -> None:
    """Refuse an arm that changes settings which the method does not read."""
    needs = ARMS[arm].needs
    fitting = methods_that(lambda entry: needs in entry.settings)
    require(
        needs is None or recipe.method in fitting,
        f"{arm} {ARMS[arm].of_others.format(method=recipe.method)}; leave this arm out, or set "
        f"--method {' or '.join(fitting)}",
    )


def _require_weights(recipe: Recipe, arm: str) -> None:
    """Refuse an arm whose name says something else than the weights that it begins with."""
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
