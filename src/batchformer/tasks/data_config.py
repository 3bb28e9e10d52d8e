"""The data of any task; nothing here needs torch."""

from __future__ import annotations

from typing import Any

from batchformer.tasks.config import LongTailConfig
from batchformer.tasks.contrast_config import ContrastConfig
from batchformer.tasks.detection_config import DetectionConfig
from batchformer.tasks.domain_config import DomainConfig
from batchformer.tasks.feature_config import FeatureConfig
from batchformer.tasks.pair_config import PairConfig

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
