"""What MoCo with BatchFormer cannot be told; nothing here needs torch."""

from __future__ import annotations

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import require


def require_contrast_sense(method: str, module: ModuleConfig, hyper: MethodConfig) -> None:
    """Refuse settings of the streams that mean nothing to MoCo, or to this one.

    Args:
        method: moco_v2 or moco_v3.
        module: BatchFormer's settings; without it there is nothing to refuse.
        hyper: the method's own.
    """
    if not module.enabled:
        return
    require(
        module.loss_scale != "official",
        'the released code of MoCo-v3 adds its terms, which is module.loss-scale "sum", and that '
        'of MoCo-v2 takes their mean, which is "mean"; the official loss is that of Balanced '
        "Softmax",
    )
    require(
        module.mixed_weight == 1,
        "in MoCo both streams are contrasted with each other, so the mixed one has no weight of "
        "its own; leave module.mixed-weight at 1, or choose hyper.contrast-pairs",
    )
    require(
        module.streams == "shared" or (hyper.contrast_pairs == "all" and hyper.enqueued == "both"),
        'with module.streams "mixed_only" there is one stream, and nothing to choose from; leave '
        "hyper.contrast-pairs all and hyper.enqueued both",
    )
    require(
        method != "moco_v2" or hyper.contrast_pairs in ("all", "plain"),
        f"hyper.contrast-pairs {hyper.contrast_pairs} is a list of the released MoCo-v3; "
        "moco_v2 has all and plain",
    )
