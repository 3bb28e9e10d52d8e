"""The sides of a comparison: each arm is the recipe with one thing changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from batchformer.lab.config.methods import find_method, require_training, without_batchformer
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.settings import Grouping
from batchformer.lab.config.training import require


def _module(**changes: Any) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, module=dataclasses.replace(recipe.module, **changes))

    return change


def _official_grouping(recipe: Recipe) -> Recipe:
    """IRM with the released code's parts of a batch."""
    require(
        Grouping in find_method(recipe.method).settings,
        f"batchformer_official_grouping is how the released code of irm cuts a batch into parts, "
        f"and {recipe.method} has no such parts; leave this arm out, or set --method irm",
    )
    hyper = dataclasses.replace(recipe.hyper, irm_grouping="official")
    return dataclasses.replace(recipe, hyper=hyper)


def _baseline(loss_multiplier: float = 1.0) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        module = dataclasses.replace(recipe.module, enabled=False)
        factor = recipe.train.loss_multiplier * loss_multiplier
        train = dataclasses.replace(recipe.train, loss_multiplier=factor)
        return dataclasses.replace(recipe, module=module, train=train)

    return change


def _random_weights(recipe: Recipe) -> Recipe:
    """Without BatchFormer, and without the weights that the recipe begins with."""
    return dataclasses.replace(_baseline()(recipe), start="", weights="")


#: Every arm, with what it is for.
ARMS: dict[str, tuple[Callable[[Recipe], Recipe], str]] = {
    "baseline": (_baseline(), "the network alone, without BatchFormer"),
    "batchformer": (_module(), "BatchFormer as in the paper"),
    "batchformer_self": (_module(attend="self"), "control: attention masked to the diagonal"),
    "batchformer_frozen": (_module(trained=False), "control: the encoder stays untrained"),
    "batchformer_mixed_only": (_module(streams="mixed_only"), "ablation: no shared classifier"),
    "batchformer_official_loss": (
        _module(loss_scale="official"),
        "the released code's loss: both halves and their mean, three times the paper's",
    ),
    "batchformer_official_grouping": (
        _official_grouping,
        "irm: the released code's parts of a batch, which mix domains",
    ),
    "class_context": (
        _module(context="classes"),
        "running means of all classes join the batch as rows that samples attend to",
    ),
    "class_context_self": (
        _module(context="classes", attend="self"),
        "control: class_context with attention masked to the diagonal",
    ),
    "random_weights": (
        _random_weights,
        "control: features of an untrained network, for probes of trained ones",
    ),
    "baseline_loss1.5x": (_baseline(1.5), "control: the baseline with 1.5 times its loss"),
    "baseline_loss3x": (_baseline(3.0), "control: the baseline with 3 times its loss"),
}


def with_arm(recipe: Recipe, arm: str) -> Recipe:
    """The recipe as this arm trains it."""
    if arm not in ARMS:
        raise ValueError(f"There is no arm {arm!r}; there are {', '.join(ARMS)}.")
    changed = ARMS[arm][0](recipe)
    require_training(changed.method, changed.module)
    _require_weights(recipe, arm)
    require(
        not (changed.module.enabled and arms_start_equal(changed)),
        f"BatchFormer takes no part in {recipe.method}, and {recipe.name} begins with the same "
        f"weights in every arm, so that the arm {arm} would be the baseline under another name. "
        "Take the baseline alone: --arms baseline with compare, --arm baseline with train; or name "
        "runs of the same arms by --start RECIPE, without an arm",
    )
    return changed


def arms_start_equal(recipe: Recipe) -> bool:
    """Whether arms with BatchFormer would be the baseline: nothing that they begin with differs."""
    named = "/" in recipe.start  # one arm of another recipe, whichever arm begins with it
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


def _require_weights(recipe: Recipe, arm: str) -> None:
    """Refuse an arm whose network begins otherwise than its name says."""
    trained = bool(recipe.start or recipe.weights)
    if find_method(recipe.method).given == "features":
        require(
            trained or arm == "random_weights",
            f"{recipe.name} measures features that are learnt elsewhere, and names none, so that "
            f"the arm {arm} would be an untrained network under that name; name a run by --start "
            "RECIPE, a file by --weights FILE, or the arm random_weights",
        )
    else:
        require(
            trained or arm != "random_weights",
            f"{recipe.name} begins with random weights in every arm, so that the arm "
            "random_weights would be the baseline under another name; it is for recipes that start "
            "from trained weights, such as probes and neighbours of what this one learns",
        )
