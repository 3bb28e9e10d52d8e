"""The data of any task; nothing here needs torch."""

from __future__ import annotations

from typing import Any

from batchformer.lab.config.contrast import ContrastConfig
from batchformer.lab.config.detection import DetectionConfig
from batchformer.lab.config.domains import DomainConfig
from batchformer.lab.config.features import FeatureConfig
from batchformer.lab.config.images import LongTailConfig
from batchformer.lab.config.pairs import PairConfig

DataConfig = (
    LongTailConfig | DomainConfig | PairConfig | FeatureConfig | ContrastConfig | DetectionConfig
)

#: What configures the data, by the family of experiments.
BY_TASK: dict[str, type[Any]] = {
    "long_tailed": LongTailConfig,
    "ablation": LongTailConfig,
    "domains": DomainConfig,
    "compositional": PairConfig,
    "generalized": FeatureConfig,
    "contrastive": ContrastConfig,
    "recognition": LongTailConfig,
    "detection": DetectionConfig,
}
