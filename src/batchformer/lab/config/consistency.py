"""Settings that contradict one another, or have no effect: refused, or left out of the help.

What contradicts itself is refused when a recipe is made, before anything is read or trained. What
depends on the method is asked of its declaration in ``config/methods.py``. Nothing here needs
torch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from batchformer.lab.config.data import BY_TASK
from batchformer.lab.config.methods import (
    COMMON,
    METHODS,
    MethodEntry,
    find_method,
    methods_that,
    require_contrast_sense,
    require_sense,
)
from batchformer.lab.config.settings import (
    Adversary,
    LatePenalty,
    MethodConfig,
    Mixing,
    MomentumContrast,
    Network,
    ShuffledNorm,
    ValleyAverage,
)
from batchformer.lab.config.training import require

if TYPE_CHECKING:
    from batchformer.lab.config.recipe import Recipe


def require_consistent(recipe: Recipe) -> None:
    """Raise ValueError, which says what to set, where settings do not go together."""
    for setting in ("name", "start", "teacher"):
        value = getattr(recipe, setting)
        several = setting == "teacher" and isinstance(value, str)
        listed = source_names(value) if several else (value,)
        for path in listed:
            _require_inside(setting, path)
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
    require(
        not recipe.hyper.feature_layer or recipe.task != "detection",
        "hyper.feature-layer is a layer before a classifier of images, and a detector takes the "
        "network without it; set --hyper.feature-layer 0",
    )
    why_not = entry.refuse_data(recipe.data)
    require(not why_not, f"{recipe.method} {why_not}")
    _require_read(recipe)
    require(
        getattr(recipe.data, "sampler", "") != "mates"
        or recipe.train.batch_size % (2 * recipe.train.accumulate) == 0,
        "data.sampler mates puts pairs into a batch; set train.batch-size to a multiple of "
        f"{2 * recipe.train.accumulate}",
    )
    _require_swad(recipe)
    _require_mixing(recipe)
    if MomentumContrast in entry.settings:
        require_contrast_sense(recipe.method, recipe.module, recipe.hyper)
    if ShuffledNorm in entry.settings and recipe.hyper.norm_parts > 1:
        _require_parts(recipe)
    if recipe.task == "generalized":
        _require_features(recipe, recipe.data)


def source_names(value: str) -> tuple[str, ...]:
    """The names of runs in a setting, which commas separate.

    >>> source_names("many/baseline, few/baseline"), source_names("")
    (('many/baseline', 'few/baseline'), ())
    """
    return tuple(name.strip() for name in value.split(",")) if value else ()


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
    teachers, sizes = source_names(recipe.teacher), find_method(recipe.method).teacher_classes
    require(
        not teachers or "teacher" in reads,
        f"{recipe.method} has no teacher; --teacher is for the method {_reader('teacher')}",
    )
    require(
        len(teachers) == 1 or not teachers or sizes is not None,
        f"{recipe.method} has one teacher, and --teacher names {len(teachers)}",
    )
    require(
        bool(teachers) or sizes is None,
        f"{recipe.method} learns from trained experts; name the run of each, those of the largest "
        "classes first, by --teacher RECIPE/ARM,RECIPE/ARM,RECIPE/ARM",
    )
    own = () if recipe.task == "contrastive" else dataclasses.fields(data)  # its views are its own
    for field in own:
        setting, value = f"data.{field.name}", getattr(data, field.name)
        readers, option = _reader(setting), field.name.replace("_", "-")
        usual = f"set --data.no-{option}" if value is True else f"leave it {field.default}"
        require(
            value == field.default or not readers or setting in reads,
            f"data.{option} {value} is for the method {readers}, and {recipe.method} does not read "
            f"it; {usual}",
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
        recipe.task == "domains",
        "swad finds its valley in the loss on held-out images (data.held-out), which only tasks of "
        f"several domains have, and this is {recipe.task}; leave hyper.swad off",
    )
    require(
        getattr(recipe.data, "held_out", 0) > 0,
        "swad finds its valley in the loss on held-out images, and data.held-out is 0; set "
        "data.held-out, for example 0.2, or leave hyper.swad off",
    )


def _require_features(recipe: Recipe, data: Any) -> None:
    require(
        not data.choose or recipe.train.select_on == "last",
        f"train.select-on {recipe.train.select_on} has no effect where data.choose lets "
        "validation classes choose the epoch; set --data.no-choose beside it, or leave "
        "train.select-on last",
    )
    require(
        not data.choose or recipe.train.epochs > 0,
        "data.choose lets validation classes choose an epoch, and train.epochs is 0; set "
        "train.epochs, or --data.no-choose beside train.updates",
    )
    require(
        not (data.choose and recipe.schedule.kind == "cosine"),
        "a training that ends at the chosen epoch has rates that do not depend on its "
        "length; set schedule.kind constant or multistep, or leave data.choose off",
    )
    steps = recipe.hyper.critic_steps
    require(
        Adversary not in find_method(recipe.method).settings or data.batches == steps,
        f"every step of the critic has a batch of its own: set data.batches {steps}, as "
        "hyper.critic-steps",
    )


def _require_inside(setting: str, path: str) -> None:
    """Refuse a path that leaves the folder of runs: a recipe may have been read from a file."""
    parts = path.replace("\\", "/").split("/") if isinstance(path, str) else [".."]
    inside = path == "" or not {"", ".", ".."} & set(parts)
    require(inside, f"{setting} is {path!r}, which is not inside the folder of runs")


def _require_parts(recipe: Recipe) -> None:
    """Refuse batches that cannot be split into equal parts, and parts beside ``sync_norm``."""
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


# Settings that the short help of a recipe leaves out; --help-all shows them

#: Settings of the optimizer that only these read.
_OPTIMIZERS = {
    "momentum": ("sgd", "lars"),
    "nesterov": ("sgd",),
    "betas": ("adam", "adamw"),
    "trust": ("lars",),
}
#: Settings of the schedule that only these shapes read.
_SHAPES = {
    "floor": ("cosine",),
    "milestones": ("multistep",),
    "gamma": ("multistep",),
    "rate": ("power",),
    "power": ("power",),
}
#: Settings of training on several ranks.
_RANKS = ("train.parallel", "train.sync_norm", "module.exchange")
#: Settings of image files and of networks that are trained on them.
_IMAGE_FILES = ("stride", "train.workers", "train.damaged")


def hidden_settings(recipe: Recipe) -> set[str]:
    """Names such as ``data.root`` of what has no effect on a recipe, or needs several ranks.

    A setting that the recipe sets itself is never hidden.

    >>> from batchformer.lab.recipes import find_recipe
    >>> hidden = hidden_settings(find_recipe("demo"))
    >>> "hyper.tau" in hidden, "hyper.cutmix" in hidden, "data.ratio" in hidden
    (True, False, False)
    """
    return {name for name in _idle(recipe) if not _is_set(recipe, name)}


def unread_settings(recipe: Recipe) -> set[str]:
    """Settings of data, method, optimizer and schedule that are set, and that no arm reads.

    Those that a network may read, and those that change speed alone, are left out.

    >>> from batchformer.lab.recipes import find_recipe
    >>> unread_settings(find_recipe("demo").changed(hyper={"smoothing": 0.1, "cutmix": 1.0}))
    {'hyper.smoothing'}
    """
    groups = ("data.", "hyper.", "optim.", "schedule.")
    read = {f"hyper.{field.name}" for field in dataclasses.fields(Network)}
    read |= {"data.size", "data.memory", "hyper.experts", "hyper.scale"}
    idle = {setting for setting in _idle(recipe) if setting.startswith(groups)} - read
    return {setting for setting in idle if _is_set(recipe, setting)}


def _is_set(recipe: Recipe, setting: str) -> bool:
    """Whether a setting has another value than its default."""
    group, _, name = setting.rpartition(".")
    settings: Any = getattr(recipe, group) if group else recipe
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    return name in defaults and getattr(settings, name) != defaults[name]


def _idle(recipe: Recipe) -> set[str]:
    entry = find_method(recipe.method)
    idle = {f"data.{name}" for name in recipe.data.idle()}
    read = {setting for known in METHODS.values() for setting in known.reads}
    idle |= read - set(entry.reads) - ({"data.views"} if recipe.task == "contrastive" else set())
    idle |= {f"hyper.{name}" for name in _of_methods(recipe, entry)}
    if entry.batchformer != "trains":
        idle |= {f"module.{field.name}" for field in dataclasses.fields(recipe.module)}
    if not entry.sample_loss:
        idle |= {"module.context", "module.views", "module.mixed_labels"}
    if not entry.inside:
        idle |= {"module.at", "module.encoder"}
    if len(recipe.module.at) < 2:
        idle.add("module.share")
    if recipe.module.context == "none":
        idle |= {"module.context_momentum", "module.context_weight"}
    if recipe.module.mixed_labels == "own":
        idle.add("module.label_share")
    if recipe.module.layers == 1:
        idle.add("module.copy_layers")
    idle |= {f"optim.{name}" for name, of in _OPTIMIZERS.items() if recipe.optim.name not in of}
    idle |= {f"schedule.{name}" for name, of in _SHAPES.items() if recipe.schedule.kind not in of}
    if not recipe.schedule.warmup:
        idle |= {"schedule.warmup_from", "schedule.warmup_overshoot"}
    if LatePenalty not in entry.settings:
        idle.add("schedule.restart")
    if not recipe.train.epochs:
        idle.add("train.eval_epochs")
    if not recipe.data.of_files:
        idle |= set(_IMAGE_FILES)
    return idle | set(_RANKS)


def _of_methods(recipe: Recipe, entry: MethodEntry) -> set[str]:
    """Settings of other methods, and of what this recipe does not use."""
    read = {*entry.settings, *COMMON}
    if recipe.task != "domains":
        read.discard(ValleyAverage)
    if not recipe.data.of_files:
        read.discard(Network)
    known = {field.name for group in read for field in dataclasses.fields(group)}
    return {field.name for field in dataclasses.fields(MethodConfig)} - known
