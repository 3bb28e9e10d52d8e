"""What a recipe must not ask for: settings that contradict one another, or would have no effect.

Refused when a recipe is made, before anything is read or trained. What depends on the method is
asked of its declaration in ``config/methods.py``. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchformer.lab.config.data import BY_TASK, DomainConfig, FeatureConfig
from batchformer.lab.config.methods import (
    find_method,
    methods_that,
    require_contrast_sense,
    require_sense,
)
from batchformer.lab.config.settings import Contrast, Mixing, ShuffledNorm
from batchformer.lab.config.training import require

if TYPE_CHECKING:
    from batchformer.lab.config.recipe import Recipe


def require_consistent(recipe: Recipe) -> None:
    """Raise ValueError, which says what to set, where settings do not go together."""
    for setting in ("name", "start", "teacher"):
        _require_inside(setting, getattr(recipe, setting))
    entry = find_method(recipe.method)
    require_sense(recipe.method, recipe.module)
    _require_source(recipe)
    require(
        recipe.train.batch_size > 0 or getattr(recipe.data, "sampler", "") == "domains",
        "train.batch-size 0 stands for 32 images of each domain, which data.sampler domains "
        "gives; set train.batch-size",
    )
    kind = BY_TASK[recipe.task]
    require(isinstance(recipe.data, kind), f"{recipe.task} needs the data of {kind.__name__}")
    require(
        recipe.task in entry.tasks,
        f"{recipe.method} is for {entry.needs}, and not for the task {recipe.task}, which has "
        f"{_methods_of(recipe.task)}; `batchformer list {recipe.method}` shows recipes with it",
    )
    why_not = entry.refuse_data(recipe.data)
    require(not why_not, f"{recipe.method} {why_not}")
    _require_read(recipe)
    _require_swad(recipe)
    _require_mixing(recipe)
    if Contrast in entry.settings:
        require_contrast_sense(recipe.method, recipe.module, recipe.hyper)
    if ShuffledNorm in entry.settings and recipe.hyper.norm_parts > 1:
        _require_parts(recipe)
    if isinstance(recipe.data, FeatureConfig):
        _require_features(recipe, recipe.data)


def _methods_of(task: str) -> str:
    return ", ".join(methods_that(lambda entry: task in entry.tasks))


def _require_source(recipe: Recipe) -> None:
    """Refuse a method without the network that it works on, and a network with two sources."""
    require(
        bool(recipe.start or recipe.weights)
        or find_method(recipe.method).given not in ("network", "classifier"),
        f"{recipe.method} works on the network of a trained run; name it by --start RECIPE/ARM, "
        "or a file of weights by --weights",
    )
    require(
        not (recipe.start and recipe.weights),
        "a network begins with the weights of a run (start) or of a file (weights), not both",
    )


def _require_read(recipe: Recipe) -> None:
    """Refuse settings that this method does not read."""
    reads, data = find_method(recipe.method).reads, recipe.data
    require(
        not recipe.teacher or "teacher" in reads,
        f"{recipe.method} has no teacher; --teacher is for the method {_reader('teacher')}",
    )
    require(
        not isinstance(data, DomainConfig) or data.adapt == ("data.adapt" in reads),
        "mdd adapts to a target, and other methods do not; set data.adapt with the method mdd "
        "and with it alone",
    )
    require(
        recipe.task == "contrastive"
        or getattr(data, "views", "none") == "none"
        or "data.views" in reads,
        f"data.views is for the method {_reader('data.views')}, which looks at features, and not "
        f"for {recipe.method}",
    )
    require(
        not getattr(data, "mask", False) or "data.mask" in reads,
        f"data.mask leaves out pairs by how feasible {_reader('data.mask')} finds them, and "
        f"{recipe.method} does not judge that; set --data.no-mask",
    )


def _reader(setting: str) -> str:
    return " or ".join(methods_that(lambda entry: setting in entry.reads))


def _require_mixing(recipe: Recipe) -> None:
    hyper = recipe.hyper
    mixing = bool(hyper.mixup or hyper.cutmix)
    fitting = methods_that(lambda entry: Mixing in entry.settings)
    require(
        not mixing or recipe.method in fitting,
        f"hyper.mixup and hyper.cutmix mix the targets of two images, and {recipe.method} does not "
        f"support that; leave both at 0, or set --method {' or '.join(fitting)}",
    )
    require(
        mixing or hyper.mix_prob == 1,
        f"hyper.mix-prob {hyper.mix_prob:g} is the probability that a batch is mixed, and nothing "
        "mixes it; set --hyper.cutmix or --hyper.mixup, for example 1",
    )


def _require_swad(recipe: Recipe) -> None:
    if not recipe.hyper.swad:
        return
    require(
        not recipe.train.ema,
        "swad averages the weights themselves; leave train.ema at 0, or hyper.swad off",
    )
    require(
        isinstance(recipe.data, DomainConfig),
        "swad finds its valley in the loss on held-out images (data.held-out), which tasks of "
        f"several domains alone have, and this is {recipe.task}; leave hyper.swad off",
    )
    require(
        getattr(recipe.data, "held_out", 0) > 0,
        "swad finds its valley in the loss on held-out images, and data.held-out is 0; set "
        "data.held-out, for example 0.2, or leave hyper.swad off",
    )


def _require_features(recipe: Recipe, data: FeatureConfig) -> None:
    require(
        not data.choose or recipe.train.select_on == "last",
        f"train.select-on {recipe.train.select_on} has no effect where data.choose has "
        "classes of validation choose the epoch; set --data.no-choose beside it, or leave "
        "train.select-on last",
    )
    require(
        not (data.choose and recipe.schedule.kind == "cosine"),
        "a training that ends at the chosen epoch has rates that do not depend on its "
        "length; set schedule.kind constant or multistep, or leave data.choose off",
    )
    steps = recipe.hyper.critic_steps
    require(
        data.batches == steps,
        f"every step of the critic has a batch of its own: set data.batches {steps}, as "
        "hyper.critic-steps",
    )


def _require_inside(setting: str, path: str) -> None:
    """These name folders of runs, and a recipe may have been read from a file."""
    parts = path.replace("\\", "/").split("/") if isinstance(path, str) else [".."]
    inside = path == "" or not {"", ".", ".."} & set(parts)
    require(inside, f"{setting} is {path!r}, which is no place in the folder of runs")


def _require_parts(recipe: Recipe) -> None:
    """Refuse batches that have no parts of one size, and parts of what is normalised whole."""
    parts, train = recipe.hyper.norm_parts, recipe.train
    rows = parts * train.accumulate
    require(
        train.batch_size > 0 and train.batch_size % rows == 0 and train.drop_last,
        f"hyper.norm-parts {parts} needs batches with as many rows in every part: set "
        f"train.batch-size to a multiple of {rows}, and train.drop-last",
    )
    require(
        not train.sync_norm,
        f"train.sync-norm normalises a batch as a whole, hyper.norm-parts {parts} in parts; leave "
        "one of them off",
    )
