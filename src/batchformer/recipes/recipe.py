"""A recipe: the complete, typed configuration of one experiment; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig, require
from batchformer.methods.config import MethodConfig, MethodName, ModuleConfig, require_sense
from batchformer.tasks.config import LongTailConfig
from batchformer.tasks.contrast_config import ContrastConfig
from batchformer.tasks.data_config import BY_TASK, DataConfig
from batchformer.tasks.detection_config import DetectionConfig
from batchformer.tasks.domain_config import DomainConfig
from batchformer.tasks.feature_config import FeatureConfig
from batchformer.tasks.pair_config import PairConfig

#: Methods that compare the domains of a batch.
OF_DOMAINS = ("coral", "irm", "vrex", "mixstyle")
#: Methods of zero-shot learning: on images of pairs, and on features.
OF_PAIRS, OF_FEATURES = ("cge", "compcos"), ("ce_gzsl", "eszsl")
#: Methods that learn without labels, and what learns to find objects.
OF_TWO_VIEWS, OF_BOXES = ("moco_v2", "moco_v3"), ("detector",)
#: Methods that take the network of another run and leave its features as they are.
FROM_ANOTHER_RUN = ("crt", "tau_norm", "lws", "balms", "ride_assignment")


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
    """Length and mechanics."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's numbers: arm, then metric."""

    def __post_init__(self) -> None:
        for setting in ("name", "start", "teacher"):
            _require_inside(setting, getattr(self, setting))
        require_sense(self.method, self.module)
        require(
            bool(self.start or self.weights) or self.method not in FROM_ANOTHER_RUN,
            f"{self.method} works on the network of a trained run; name it by --start RECIPE/ARM, "
            "or a file of weights by --weights",
        )
        require(
            not (self.start and self.weights),
            "a network begins with the weights of a run (start) or of a file (weights), not both",
        )
        require(
            not self.teacher or self.method == "ride",
            f"{self.method} has no teacher; --teacher is for the method ride",
        )
        require(
            not (self.hyper.swad and self.train.ema),
            "swad averages the weights themselves; leave train.ema at 0, or hyper.swad off",
        )
        kind = BY_TASK[self.task]
        of_kind = isinstance(self.data, kind)
        require(of_kind, f"{self.task} needs the data of {kind.__name__}")
        if isinstance(self.data, DomainConfig):
            _require_domains(self.method, self.data)
        elif isinstance(self.data, LongTailConfig):
            _require_long_tail(self.method, self.data)
        else:
            methods = _METHODS_OF[type(self.data)]
            known = " and ".join(methods)
            require(self.method in methods, f"{self.task} has {known}, not {self.method}")
        if isinstance(self.data, FeatureConfig):
            require(
                not (self.data.choose and self.schedule.kind == "cosine"),
                "a training that ends at the chosen epoch has rates that do not depend on its "
                "length; set schedule.kind constant or multistep, or leave data.choose off",
            )
            steps = self.hyper.critic_steps
            require(
                self.data.batches == steps,
                f"every step of the critic has a batch of its own: set data.batches {steps}, as "
                "hyper.critic-steps",
            )

    def data_with(self, **changes: Any) -> Any:
        """Its data with other settings."""
        return replace(self.data, **changes)


_METHODS_OF: dict[type[Any], tuple[str, ...]] = {
    PairConfig: OF_PAIRS,
    FeatureConfig: OF_FEATURES,
    ContrastConfig: OF_TWO_VIEWS,
    DetectionConfig: OF_BOXES,
}


def _require_inside(setting: str, path: str) -> None:
    """These name folders of runs, and a recipe may have been read from a file."""
    parts = path.replace("\\", "/").split("/") if isinstance(path, str) else [".."]
    inside = path == "" or not {"", ".", ".."} & set(parts)
    require(inside, f"{setting} is {path!r}, which is no place in the folder of runs")


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
