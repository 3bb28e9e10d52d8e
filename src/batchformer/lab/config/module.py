"""Settings of BatchFormer and its place in the loss; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import (
    at_least,
    below_one,
    require,
    require_limits,
    zero_to_one,
)


@dataclass(frozen=True, kw_only=True)
class ModuleConfig:
    """BatchFormer and its place in the loss. The defaults are the paper's."""

    enabled: bool = True
    """Whether BatchFormer takes part in training; off: the baseline."""
    at: tuple[str, ...] = ()
    """Modules of the network that BatchFormer stands before (BatchFormerV2), such as blocks.9 of a
    transformer. That is after its block 8: samples attend to one another at every position. Rows
    double at the first place, and later places mix the second half. Empty: BatchFormer stands
    between pooled features and the classifier."""
    share: bool = False
    """With several places in module.at: one encoder for all; else each has its own."""
    encoder: Literal["transformer", "dropout", "norm", "none"] = "transformer"
    """"none", with module.at: two streams without an encoder. This is the control in which only the
    doubling is left: the streams differ by dropout and drop path alone. "dropout", without
    module.at: the mixed rows are the plain features after module.dropout. "norm": the same, and
    then each row is normalised to mean 0 and variance 1."""
    heads: int = at_least(1, 4)
    """Attention heads."""
    layers: int = at_least(1, 1)
    """Encoder layers."""
    copy_layers: bool = False
    """Start all encoder layers from the same weights, as the released code does."""
    dropout: float = below_one(0.5)
    """Dropout inside the encoder."""
    attend: Literal["batch", "self"] = "batch"
    """"self" masks attention to the diagonal: no sample sees another."""
    views: int = at_least(1, 1)
    """cross_entropy, balanced_softmax: mixed streams, each a pass of the encoder with dropout of
    its own. Their mean loss has the weight of one."""
    mixed_labels: Literal["own", "attention", "random"] = "own"
    """cross_entropy, balanced_softmax: the target of a mixed row. "attention": the labels of the
    batch, weighted as the row attends to them (last layer, mean over heads, before dropout).
    "random": the same weights, permuted at random among the other samples."""
    label_share: float = zero_to_one(1.0)
    """With module.mixed-labels attention or random: share of these labels in the target; the rest
    is the sample's own label."""
    exchange: bool = False
    """Let samples of all ranks attend to one another, where several train together; else those of
    each rank do. More is not always better: in the paper's ablation of the batch size
    (ImageNet-LT, ResNet-10; 16, 32, 64, 128, 256, 512 samples) accuracy is 43.2, 43.6, 43.3, 43.2,
    42.4, 42.5 over all classes, and 23.9, 24.9, 25.3, 24.9, 25.2, 25.8 on few-shot classes."""
    streams: Literal["shared", "mixed_only"] = "shared"
    """"mixed_only" trains the classifier on mixed features alone. This is the paper's ablation, and
    its RIDE on ImageNet-LT and iNaturalist."""
    trained: bool = True
    """Whether the encoder is trained; off: it keeps its random initial weights."""
    lr_factor: float = at_least(0, 0.1)
    """Learning rate of the encoder as a multiple of the network's."""
    loss_scale: Literal["mean", "sum", "official"] = "mean"
    """"official" is three times the paper's mean over 2N rows, as in the released code for Balanced
    Softmax; "sum" adds the two streams, as the released code of RIDE on CIFAR does."""
    mixed_weight: float = at_least(0, 1.0)
    """Weight of the mixed stream's loss."""
    context: Literal["none", "classes"] = "none"
    """cross_entropy, balanced_softmax: "classes" adds a running mean of every class's features to
    the rows that samples attend to. So every class seen so far is in every batch."""
    context_momentum: float = below_one(0.9)
    """With module.context classes: share of its old value that a running mean keeps at an update
    with images of its class."""
    context_weight: float = at_least(0, 0.1)
    """With module.context classes: weight of the cross-entropy of the mixed class rows."""

    def __post_init__(self) -> None:
        require_limits(self, "module")
        require(
            all(self.at) and len(set(self.at)) == len(self.at),
            f"module.at names a place twice, or none: {', '.join(map(repr, self.at))}",
        )
