"""A recipe: the complete, typed configuration of one experiment; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from batchformer.lab.config.consistency import require_consistent
from batchformer.lab.config.data import DataConfig, LongTailConfig
from batchformer.lab.config.methods import MethodConfig, MethodName, ModuleConfig
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig

#: Settings that tell one row of the paper from another, besides network and method.
ROW_OF_DATA = ("name", "ratio", "world", "source", "trained_on")
ROW_OF_METHOD = ("experts", "detector")
#: In place of a table and row, where the paper has no numbers.
NOT_IN_THE_PAPER = "not in the paper"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One experiment of the paper, or of ours."""

    name: str
    """What the command line calls it."""
    summary: str
    """One line for the list."""
    table: str
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
    """RECIPE or RECIPE/ARM: the run whose network ride distils from. Empty: none."""
    module: ModuleConfig = field(default_factory=ModuleConfig)
    """BatchFormer."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Learning rate over time."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length and precision of training, and how its updates are made."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's numbers: arm, then metric."""

    def __post_init__(self) -> None:
        require_consistent(self)

    @property
    def row(self) -> tuple[object, ...]:
        """What the paper's numbers are of: with other data, network or method it has none."""
        data = (getattr(self.data, name, None) for name in ROW_OF_DATA)
        hyper = (getattr(self.hyper, name) for name in ROW_OF_METHOD)
        return (*data, self.model, self.method, *hyper)

    def data_with(self, **changes: Any) -> Any:
        """Its data with other settings."""
        return replace(self.data, **changes)
