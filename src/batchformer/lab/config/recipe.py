"""A recipe: the complete, typed configuration of one experiment; nothing here needs torch.

This file also says which settings decide whether two runs are comparable. Resumed runs, sweeps that
reuse runs, reports that average runs and published records use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from batchformer.lab.config.consistency import require_consistent, source_names
from batchformer.lab.config.data import DataConfig, LongTailConfig
from batchformer.lab.config.methods import MethodConfig, MethodName, ModuleConfig
from batchformer.lab.config.training import (
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
    require_limits,
)

#: Settings that tell one row of the paper from another, besides network and method.
ROW_OF_DATA = (
    *("name", "ratio", "profile", "per_class", "min_images", "max_images"),
    *("world", "source", "trained_on"),
)
ROW_OF_METHOD = ("experts", "detector")
#: Stands in place of table and row if the paper has no numbers.
NOT_IN_THE_PAPER = "not in the paper"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One experiment of the paper, or of ours."""

    name: str
    """What the command line calls it."""
    summary: str
    """One line for the list."""
    table: str = NOT_IN_THE_PAPER
    """Table and row of the paper."""
    task: Literal[
        "long_tailed",
        "ablation",
        "domains",
        "compositional",
        "generalized",
        "contrastive",
        "recognition",
        "detection",
    ]
    """Family of experiments."""
    data: DataConfig = field(default_factory=LongTailConfig)
    """Data."""
    model: str = "resnet32"
    """Network: resnet32, ride_resnet32 (CIFAR), digits_net, or any of timm's. Empty where the
    method has its own."""
    weights: str = ""
    """A file of weights to begin with (.pth, .safetensors), or "timm" for those that timm downloads
    for this network; a classifier of other classes is dropped. Empty: random weights. A relative
    path is also looked for in the folder of the data."""
    stride: Literal["auto", "3x3", "1x1"] = "auto"
    """Where bottlenecks of a ResNet stride; auto: as the metadata of the weights says, else in the
    3x3 as torchvision and timm have it."""
    convolutions: Literal["all", "last_block"] = "all"
    """Which convolutions of a ResNet are trained; normalisation and classifier always are."""
    method: MethodName = "balanced_softmax"
    """Method."""
    hyper: MethodConfig = field(default_factory=MethodConfig)
    """The method's own settings."""
    start: str = ""
    """RECIPE or RECIPE/ARM: the run whose network a run starts from, of the same seed and in the
    same folder of runs; without an arm, that of the same arm. Empty: random weights."""
    teacher: str = ""
    """RECIPE or RECIPE/ARM: the run whose network ride distils from. lfme has three, separated by
    commas: experts on many, medium and few. Empty: none."""
    module: ModuleConfig = field(default_factory=ModuleConfig)
    """BatchFormer."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Learning rate over time."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length and precision of training, and how its updates are made."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's numbers: arm, then metric. They are looked up by the recipe's name."""

    def __post_init__(self) -> None:
        require_limits(self, "")
        require_consistent(self)

    @property
    def row(self) -> tuple[object, ...]:
        """The data, network and method that the paper's numbers are for; others have no numbers."""
        data = (getattr(self.data, name, None) for name in ROW_OF_DATA)
        hyper = (getattr(self.hyper, name) for name in ROW_OF_METHOD)
        return (*data, self.model, self.method, *hyper)

    def sources(self) -> list[tuple[str, str]]:
        """The runs whose networks this one needs, each as a role (start or teacher) and a name."""
        starts = [("start", self.start)] if self.start else []
        return [*starts, *(("teacher", name) for name in source_names(self.teacher))]

    def changed(self, **changes: Any) -> Recipe:
        """The recipe with other values; a dict changes some settings of a group and keeps the rest.

        >>> from batchformer.lab.recipes import find_recipe
        >>> longer = find_recipe("demo").changed(model="resnet32", train={"updates": 900})
        >>> longer.model, longer.train.updates, longer.train.batch_size
        ('resnet32', 900, 64)
        """
        for name, value in changes.items():
            if isinstance(value, dict) and name != "paper":
                changes[name] = replace(getattr(self, name), **value)
        return replace(self, **changes)


#: A function that makes one recipe from another: an arm, or a level of a sweep.
Change = Callable[[Recipe], Recipe]


def with_settings(**changes: Any) -> Change:
    """The change that :meth:`Recipe.changed` makes with these values."""
    return lambda recipe: recipe.changed(**changes)


# Which settings decide whether two runs are comparable

#: Fields that describe a recipe. They change no result.
DESCRIPTION = ("name", "summary", "table", "paper")
#: Settings that change no result, by dotted name. A run may continue with other values of them.
NO_EFFECT = frozenset(
    {
        "train.workers",
        "train.parallel",
        "train.figures",
        "train.log_every",
        "train.checkpoint_every",
    }
)
#: If a hash shows that runs have the same data, the folder of the data does not matter either. But
#: resuming a run with another data folder is refused, since that data has not been hashed yet.
NO_EFFECT_ON_SAME_DATA = NO_EFFECT | {"data.root"}
#: Settings, or groups of them, that a training without BatchFormer does not read.
OF_BATCHFORMER = frozenset({"module", "optim.module_weight_decay"})


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name.

    >>> flatten({"model": "resnet32", "train": {"updates": 6, "workers": 2}})
    {'model': 'resnet32', 'train.updates': 6, 'train.workers': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changed_settings(
    before: Recipe | Mapping[str, Any], after: Recipe | Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Settings in which two recipes differ, by dotted name, with both values.

    A setting that one of them lacks is None there. The description is left out.
    """
    old, new = _settings(before), _settings(after)
    both = dict.fromkeys([*old, *new])
    return {key: (old.get(key), new.get(key)) for key in both if old.get(key) != new.get(key)}


def effective_changes(
    before: Recipe | Mapping[str, Any], after: Recipe | Mapping[str, Any]
) -> list[str]:
    """Describe the settings in which two trainings differ and that have an effect.

    >>> effective_changes({"train": {"updates": 6, "workers": 2}}, {"train": {"updates": 7}})
    ['train.updates was 6, is 7']
    """
    idle = NO_EFFECT
    if not (trains_batchformer(before) or trains_batchformer(after)):
        idle |= OF_BATCHFORMER
    return [
        f"{key} was {old!r}, is {new!r}"
        for key, (old, new) in changed_settings(before, after).items()
        if not {key, key.partition(".")[0]} & idle
    ]


def trains_batchformer(trained: Recipe | Mapping[str, Any]) -> bool:
    """Whether BatchFormer takes part in a training, by the recipe as its arm trains it.

    >>> trains_batchformer({"module": {"enabled": False}}), trains_batchformer({"module": {}})
    (False, True)
    """
    return _settings(trained).get("module.enabled") is not False


def _settings(recipe: Recipe | Mapping[str, Any]) -> dict[str, Any]:
    plain = recipe if isinstance(recipe, Mapping) else asdict(recipe)
    return flatten({key: value for key, value in plain.items() if key not in DESCRIPTION})
