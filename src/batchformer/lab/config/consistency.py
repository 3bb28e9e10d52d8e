"""Settings that contradict one another are refused when a recipe is made, before any work starts.

Rules that depend on the method follow from its declaration in ``config/methods.py``. Nothing here
needs torch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from batchformer.lab.config.data import BY_TASK
from batchformer.lab.config.methods import find_method, methods_that
from batchformer.lab.config.module import ModuleConfig
from batchformer.lab.config.settings import Adversary, Mixing, ShuffledNorm
from batchformer.lab.config.training import require

if TYPE_CHECKING:
    from batchformer.lab.config.recipe import Recipe


def require_consistent(recipe: Recipe) -> None:
    """Raise a ValueError that says what to set if settings do not go together."""
    named = [("name", recipe.name)] if recipe.name else []
    for setting, path in (*named, *recipe.sources()):
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
    fitting = methods_that(lambda each: recipe.task in each.tasks)
    require(
        recipe.method in fitting,
        f"{recipe.method} is for {entry.needs}, and not for the task {recipe.task}, which has "
        f"{', '.join(fitting)}; `batchformer list {recipe.method}` shows recipes with it",
    )
    require(
        not recipe.hyper.feature_layer or recipe.task != "detection",
        "hyper.feature-layer is a layer before a classifier of images, and a detector takes the "
        "network without it; set --hyper.feature-layer 0",
    )
    for refused, why in entry.refuses:
        require(not refused(recipe), why.format(method=recipe.method))
    _require_read(recipe)
    require(
        getattr(recipe.data, "sampler", "") != "mates"
        or recipe.train.batch_size % (2 * recipe.train.accumulate) == 0,
        "data.sampler mates puts pairs into a batch; set train.batch-size to a multiple of "
        f"{2 * recipe.train.accumulate}",
    )
    _require_swad(recipe)
    _require_mixing(recipe)
    if ShuffledNorm in entry.settings and recipe.hyper.norm_parts > 1:
        _require_parts(recipe)
    if recipe.task == "generalized":
        _require_features(recipe, recipe.data)


def source_names(value: str) -> tuple[str, ...]:
    """The names of runs in a setting, which are separated by commas.

    >>> source_names("many/baseline, few/baseline"), source_names("")
    (('many/baseline', 'few/baseline'), ())
    """
    return tuple(name.strip() for name in value.split(",")) if value else ()


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
    # The contrastive task reads data.views itself, so its methods need not declare that setting.
    own = () if recipe.task == "contrastive" else dataclasses.fields(data)
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
    inside = not {"", ".", ".."} & set(path.replace("\\", "/").split("/"))
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


# Settings of BatchFormer (``module.*``), and whether they make sense in a method


def require_sense(method: str, module: ModuleConfig) -> None:
    """Refuse settings of BatchFormer that have no meaning in any method, or in methods like this.

    >>> require_sense("paco", ModuleConfig(views=4))
    Traceback (most recent call last):
    ...
    ValueError: Not possible: module.views is for cross_entropy and ...
    """
    if not module.enabled:
        return
    _require_place(method, module)
    _require_sample_loss(method, module)
    if module.streams == "mixed_only":
        alone = 'with module.streams "mixed_only" there is one stream, '
        require(
            module.mixed_weight == 1,
            f"{alone}which is weighed against no other; leave module.mixed-weight at 1",
        )
        require(
            module.loss_scale != "official",
            f"{alone}and the official loss is of two; leave module.loss-scale mean, and for three "
            "times the loss set train.loss-multiplier 3",
        )


def _require_sample_loss(method: str, module: ModuleConfig) -> None:
    """Refuse settings that need a loss over samples if there is none, or that conflict."""
    needing = {
        "module.context classes": module.context == "classes",
        f"module.encoder {module.encoder}": module.encoder in ("dropout", "norm"),
        "module.mixed-labels": module.mixed_labels != "own",
        "module.views": module.views > 1,
    }
    used = [name for name, is_used in needing.items() if is_used]
    fitting = methods_that(lambda each: each.sample_loss)
    for name in used:
        require(
            method in fitting,
            f"{name} is for {' and '.join(fitting)}, not for {method}; leave it out, or set "
            f"--method {' or '.join(fitting)}",
        )
        require(
            not module.at,
            f"{name} works on pooled features, and module.at stands before these; leave one of "
            "them out",
        )
    require(
        module.encoder != "dropout" or module.dropout > 0,
        "module.encoder dropout without dropout leaves two equal streams; set module.dropout, for "
        "example 0.5",
    )
    require(
        module.context == "none" or len(used) == 1,
        f"{' and '.join(used)} are not possible together; leave one of them out",
    )
    require(
        module.mixed_labels == "own"
        or (module.attend == "batch" and module.encoder == "transformer"),
        "module.mixed-labels weighs labels by attention to other samples, and here is none; leave "
        "it own, or set --module.attend batch and --module.encoder transformer",
    )
    require(
        not module.exchange or (module.context == "none" and module.mixed_labels == "own"),
        f"{' and '.join(used)}: this works on the batch of each rank, and module.exchange joins "
        "the batches of all ranks; set --module.no-exchange",
    )


def _require_place(method: str, module: ModuleConfig) -> None:
    """Refuse a place that the method does not allow, and settings that do not go with the place."""
    entry = find_method(method)
    if not module.at:
        require(
            entry.pooled,
            f"{method} has no pooled features that BatchFormer could stand behind; name a place by "
            "module.at, such as model.encoder.layers.1, which is after the first encoder layer",
        )
        require(
            module.encoder != "none",
            "module.encoder none, and the arm batchformer_identity, leave two equal streams at the "
            "classifier, so this would be the baseline under another name; name a place inside the "
            "network by module.at",
        )
        require(not module.share, "module.share is for several places in module.at")
        return
    fitting = methods_that(lambda each: each.inside and bool({*each.tasks} & {*entry.tasks}))
    fitting = fitting or methods_that(lambda each: each.inside)
    require(
        entry.inside,
        f"module.at is for {' and '.join(fitting)}, not for {method}; leave it empty, or set "
        f"--method {' or '.join(fitting)}",
    )
    require(
        not module.copy_layers,
        "module.copy-layers is for BatchFormer before the classifier; leave it off with module.at",
    )


def require_training(method: str, module: ModuleConfig) -> None:
    """Refuse BatchFormer in a method that trains nothing.

    >>> require_training("eszsl", ModuleConfig())
    Traceback (most recent call last):
    ...
    ValueError: Not possible: eszsl is a closed form: BatchFormer has no training to act in. ...
    """
    require(
        not (module.enabled and find_method(method).batchformer == "closed_form"),
        f"{method} is a closed form: BatchFormer has no training to act in. Train the baseline "
        "alone: --arms baseline with compare, --arm baseline with train",
    )
