"""Settings of BatchFormer, and those that have no meaning in a method; nothing needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import require


@dataclass(frozen=True, kw_only=True)
class ModuleConfig:
    """BatchFormer and its place in the loss. The defaults are the paper's."""

    enabled: bool = True
    """Off: the baseline."""
    heads: int = 4
    """Attention heads."""
    layers: int = 1
    """Encoder layers."""
    copy_layers: bool = False
    """Start all encoder layers from the same weights, as the released code does."""
    dropout: float = 0.5
    """Dropout inside the encoder."""
    attend: Literal["batch", "self"] = "batch"
    """"self" masks attention to the diagonal: the control in which no sample sees another."""
    exchange: bool = False
    """Let samples of all ranks attend to one another, where several train together; else those of
    each rank do. More is not plainly better: in the paper's ablation of the batch size
    (ImageNet-LT, ResNet-10; 16, 32, 64, 128, 256, 512 samples) accuracy is 43.2, 43.6, 43.3, 43.2,
    42.4, 42.5 over all classes, and 23.9, 24.9, 25.3, 24.9, 25.2, 25.8 on few-shot classes."""
    streams: Literal["shared", "mixed_only"] = "shared"
    """"mixed_only" trains the classifier on mixed features alone: the paper's ablation, and its
    RIDE on ImageNet-LT and iNaturalist."""
    trained: bool = True
    """Whether the encoder is trained (train_module); off: it keeps its random initial weights."""
    lr_factor: float = 0.1
    """Learning rate of the encoder as a multiple of the network's."""
    loss_scale: Literal["mean", "sum", "official"] = "mean"
    """"official" is the released code's of Balanced Softmax, three times the paper's mean over 2N
    rows; "sum" adds the two streams, as the released code of RIDE on CIFAR does."""
    mixed_weight: float = 1.0
    """Weight of the mixed stream's loss."""
    context: Literal["none", "classes"] = "none"
    """cross_entropy, balanced_softmax: "classes" adds a running mean of every class's features to
    the rows that samples attend to, so that every class seen so far is in every batch."""
    context_momentum: float = 0.9
    """With module.context classes: share of its old value that a running mean keeps at an update
    with images of its class."""
    context_weight: float = 0.1
    """With module.context classes: weight of the cross-entropy of the mixed class rows."""

    def __post_init__(self) -> None:
        require(self.heads >= 1, f"module.heads is {self.heads}, below 1")
        require(self.layers >= 1, f"module.layers is {self.layers}, below 1")
        require(0 <= self.dropout < 1, f"module.dropout is {self.dropout}, outside [0, 1)")
        require(self.lr_factor >= 0, f"module.lr-factor is {self.lr_factor}, below 0")
        require(self.mixed_weight >= 0, f"module.mixed-weight is {self.mixed_weight}, below 0")
        require(
            0 <= self.context_momentum < 1,
            f"module.context-momentum is {self.context_momentum}, outside [0, 1)",
        )
        require(
            self.context_weight >= 0, f"module.context-weight is {self.context_weight}, below 0"
        )


#: Methods that class rows can join: one classifier, one row of features for each image.
WITH_CLASS_CONTEXT = ("cross_entropy", "balanced_softmax")


def require_sense(method: str, module: ModuleConfig) -> None:
    """Refuse settings of BatchFormer that have no meaning in a method.

    >>> require_sense("paco", ModuleConfig(loss_scale="official"))
    Traceback (most recent call last):
    ...
    ValueError: Not possible: PaCo with BatchFormer was never released, so ...
    """
    if not module.enabled:
        return
    official = module.loss_scale == "official"
    require(
        not (method == "paco" and official),
        "PaCo with BatchFormer was never released, so it has no official loss; for three times "
        "its loss set train.loss-multiplier 3",
    )
    require(
        not (method == "paco" and module.mixed_weight != 1),
        "in PaCo both streams are contrasted with each other, so the mixed one has no weight of "
        "its own; leave module.mixed-weight at 1",
    )
    require(
        not (method == "ride" and official),
        'the released code of RIDE adds the two streams, which is module.loss-scale "sum"; the '
        "official loss is that of Balanced Softmax",
    )
    if module.context == "classes":
        require(
            method in WITH_CLASS_CONTEXT,
            f"module.context classes, and the arms class_context and class_context_self, are for "
            f"{' and '.join(WITH_CLASS_CONTEXT)}, not for {method}; leave them out, or set "
            f"--method {' or '.join(WITH_CLASS_CONTEXT)}",
        )
        require(
            not module.exchange,
            "module.context classes adds class rows to the batch of each rank, and "
            "module.exchange joins the batches of all ranks; set --module.no-exchange, or leave "
            "module.context none",
        )
    if module.streams == "mixed_only":
        alone = 'with module.streams "mixed_only" there is one stream, '
        require(
            module.mixed_weight == 1,
            f"{alone}which is weighed against no other; leave module.mixed-weight at 1",
        )
        require(
            not official,
            f"{alone}and the official loss is of two; leave module.loss-scale mean, and for three "
            "times the loss set train.loss-multiplier 3",
        )


def require_training(method: str, module: ModuleConfig) -> None:
    """Refuse BatchFormer in a method that trains nothing.

    >>> require_training("eszsl", ModuleConfig())
    Traceback (most recent call last):
    ...
    ValueError: Not possible: eszsl is a closed form: BatchFormer has no training to act in. ...
    """
    require(
        not (method == "eszsl" and module.enabled),
        "eszsl is a closed form: BatchFormer has no training to act in. Train the baseline alone: "
        "--arms baseline with compare, --arm baseline with train",
    )
