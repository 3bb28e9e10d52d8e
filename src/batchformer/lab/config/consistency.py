"""What a recipe must not ask for: settings that contradict one another, or would have no effect.

Refused when a recipe is made, before anything is read or trained; nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchformer.lab.config.data import (
    BY_TASK,
    ContrastConfig,
    DetectionConfig,
    DomainConfig,
    FeatureConfig,
    LongTailConfig,
    PairConfig,
)
from batchformer.lab.config.methods import require_contrast_sense, require_sense
from batchformer.lab.config.training import TrainConfig, require

if TYPE_CHECKING:
    from batchformer.lab.config.recipe import Recipe

#: Methods that compare the domains of a batch.
OF_DOMAINS = ("coral", "irm", "vrex", "mixstyle")
#: Methods of zero-shot learning: on images of pairs, and on features.
OF_PAIRS, OF_FEATURES = ("cge", "compcos"), ("ce_gzsl", "eszsl")
#: Methods that learn without labels, and what learns to find objects.
OF_TWO_VIEWS, OF_BOXES = ("moco_v2", "moco_v3"), ("detector",)
#: Methods that read hyper.norm-parts.
WITH_SHUFFLED_NORM = ("moco_v2", "paco")
#: Methods that take the network of another run and leave its features as they are.
FROM_ANOTHER_RUN = ("crt", "tau_norm", "lws", "balms", "ride_assignment")
#: Methods that can train on batches mixed by Mixup or CutMix.
OF_MIXED_BATCHES = ("cross_entropy", "balanced_softmax")

_METHODS_OF: dict[type[Any], tuple[str, ...]] = {
    PairConfig: OF_PAIRS,
    FeatureConfig: OF_FEATURES,
    ContrastConfig: OF_TWO_VIEWS,
    DetectionConfig: OF_BOXES,
}


def require_consistent(recipe: Recipe) -> None:
    """Raise ValueError, which says what to set, where settings do not go together."""
    for setting in ("name", "start", "teacher"):
        _require_inside(setting, getattr(recipe, setting))
    require_sense(recipe.method, recipe.module)
    _require_beginning(recipe)
    require(
        recipe.train.batch_size > 0 or getattr(recipe.data, "sampler", "") == "domains",
        "train.batch-size 0 stands for 32 images of each domain, which data.sampler domains "
        "gives; set train.batch-size",
    )
    kind = BY_TASK[recipe.task]
    require(isinstance(recipe.data, kind), f"{recipe.task} needs the data of {kind.__name__}")
    if isinstance(recipe.data, DomainConfig):
        _require_domains(recipe.method, recipe.data)
    elif isinstance(recipe.data, LongTailConfig):
        _require_long_tail(recipe.method, recipe.data)
    else:
        methods = _METHODS_OF[type(recipe.data)]
        known = " and ".join(methods)
        require(recipe.method in methods, f"{recipe.task} has {known}, not {recipe.method}")
    _require_swad(recipe)
    _require_mixing(recipe)
    if recipe.method in OF_TWO_VIEWS:
        require_contrast_sense(recipe.method, recipe.module, recipe.hyper)
    if recipe.method in WITH_SHUFFLED_NORM and recipe.hyper.norm_parts > 1:
        _require_parts(recipe.hyper.norm_parts, recipe.train)
    if isinstance(recipe.data, PairConfig):
        require(
            not recipe.data.mask or recipe.method == "compcos",
            f"data.mask leaves out pairs by how feasible compcos finds them, and {recipe.method} "
            "does not judge that; set --data.no-mask",
        )
    if isinstance(recipe.data, FeatureConfig):
        _require_features(recipe, recipe.data)


def _require_beginning(recipe: Recipe) -> None:
    require(
        bool(recipe.start or recipe.weights) or recipe.method not in FROM_ANOTHER_RUN,
        f"{recipe.method} works on the network of a trained run; name it by --start RECIPE/ARM, "
        "or a file of weights by --weights",
    )
    require(
        not (recipe.start and recipe.weights),
        "a network begins with the weights of a run (start) or of a file (weights), not both",
    )
    require(
        not recipe.teacher or recipe.method == "ride",
        f"{recipe.method} has no teacher; --teacher is for the method ride",
    )


def _require_mixing(recipe: Recipe) -> None:
    hyper = recipe.hyper
    mixing = bool(hyper.mixup or hyper.cutmix)
    require(
        not mixing or recipe.method in OF_MIXED_BATCHES,
        f"hyper.mixup and hyper.cutmix mix the targets of two images, and {recipe.method} does not "
        f"support that; leave both at 0, or set --method {' or '.join(OF_MIXED_BATCHES)}",
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


def _require_parts(parts: int, train: TrainConfig) -> None:
    """Refuse batches that have no parts of one size, and parts of what is normalised whole."""
    size, pieces = train.batch_size, train.accumulate
    require(
        size > 0 and size % (parts * pieces) == 0 and train.drop_last,
        f"hyper.norm-parts {parts} needs batches with as many rows in every part: set "
        f"train.batch-size to a multiple of {parts * pieces}, and train.drop-last",
    )
    require(
        not train.sync_norm,
        f"train.sync-norm normalises a batch as a whole, hyper.norm-parts {parts} in parts; leave "
        "one of them off",
    )


def _require_long_tail(method: str, data: LongTailConfig) -> None:
    require(
        method not in OF_TWO_VIEWS,
        f"{method} learns from two views without labels; recipes with it are "
        "cifar100_lt_moco_v2, cifar100_lt_moco_v3 and others",
    )
    require(method not in OF_BOXES, f"{method} finds objects, and {data.name} has no boxes")
    require(
        method not in (*OF_PAIRS, *OF_FEATURES),
        f"{method} is for zero-shot learning, and every class of {data.name} is trained on",
    )
    require(
        method not in (*OF_DOMAINS, "mdd"),
        f"{method} compares domains, and {data.name} has one; recipes with domains are "
        "rotated_digits_coral, pacs_coral, my_domains and others",
    )
    require(
        data.views == "none" or method == "knn",
        f"data.views is for the method knn, which looks at features, and not for {method}",
    )
    require(
        method != "paco" or data.augment in ("paco", "simclr"),
        "paco compares two views of each image; set data.augment paco",
    )
    require(
        method != "balms" or data.meta_batch > 0,
        "balms judges its sampling by a balanced batch; set data.meta-batch, for example 512",
    )


def _require_domains(method: str, data: DomainConfig) -> None:
    require(
        method in ("cross_entropy", "balanced_softmax", "ldam", "mdd", *OF_DOMAINS),
        f"{method} is for a long tail; with domains there are cross_entropy, "
        f"{', '.join(OF_DOMAINS)} and mdd",
    )
    by_domain = data.sampler == "domains" and data.domains_in_batch != 1
    require(
        method not in OF_DOMAINS or by_domain,
        f"{method} compares the domains of a batch; set data.sampler domains",
    )
    require(
        (method == "mdd") == data.adapt,
        "mdd adapts to a target, and other methods do not; set data.adapt with the method mdd "
        "and with it alone",
    )
