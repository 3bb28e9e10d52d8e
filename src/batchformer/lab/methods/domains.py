"""Methods on several domains: CORAL, IRM, V-REx, MixStyle, and adaptation by MDD."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.domains import coral, irm_penalty, mdd
from batchformer.lab.methods.classifier import Classifier
from batchformer.lab.models.domains import insert_mixstyle, reverse_gradient
from batchformer.lab.models.heads import feature_width, replace_classifier
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import match


def by_domain(rows: Tensor, groups: int, streams: int = 1) -> Tensor:
    """Rows (R, ...) to (G, R / G, ...): for each domain its plain rows, then its mixed rows.

    Args:
        rows: G equal blocks of one stream, or the plain blocks and then the mixed ones.

    >>> import torch
    >>> by_domain(torch.tensor([1, 2, 3, 4, -1, -2, -3, -4]), groups=2, streams=2)
    tensor([[ 1,  2, -1, -2],
            [ 3,  4, -3, -4]])
    """
    if groups < 1 or not len(rows) or len(rows) % (groups * streams):
        raise ValueError(
            f"A batch with {len(rows) // streams} rows is not {groups} equal blocks, one domain "
            f"each: set data.sampler domains, and train.batch-size to a multiple of {groups}."
        )
    blocks = rows.reshape(streams, groups, -1, *rows.shape[1:])
    return blocks.transpose(0, 1).flatten(1, 2)


class ByDomain(Classifier):
    """Cross-entropy on batches of ``groups`` equal blocks of rows, one domain each.

    Which domain a block comes from may change from batch to batch. ``class_counts`` is not used.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        if self.groups < 2:
            raise ValueError(
                f"{type(self).__name__} needs batches of several domains, one after the other; "
                "these are shuffled or have one domain: set data.sampler domains, and "
                "data.domains-in-batch to 0 (all) or to 2 or more."
            )


class Penalised(ByDomain):
    """Cross-entropy plus a weight times a penalty that compares domains.

    The penalty gets what the classifier gets: rows of both streams, after the features' dropout.
    The weights of the streams' losses apply to the cross-entropy and not to the penalty.
    """

    delayed: bool = False
    """Whether the weight is 1 before the epoch ``hyper.penalty_from``."""

    weight: float
    """The weight of the penalty. It is a Python number, so it is also the phase."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, class_counts, **options)
        self.begin_epoch(0)

    def group(self, rows: Tensor, streams: int) -> Tensor:
        """Rows (R, ...) of one or two streams to (G, R / G, ...)."""
        return by_domain(rows, self.groups, streams)

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """A scalar of features (G, R / G, C), logits (G, R / G, K) and targets (G, R / G)."""
        raise NotImplementedError(f"{type(self).__name__} does not implement penalty()")

    def step(self, batch: Batch) -> dict[str, Tensor]:
        features = self.streams(self.features(batch["x"]))
        logits = self.classify(features)
        streams = len(features) // len(batch["y"])
        parts = (features, logits, match(features, batch["y"]))
        penalty = self.penalty(*(self.group(rows, streams) for rows in parts))
        ce = self.loss(logits, batch["y"])
        return {"loss": ce + self.weight * penalty, "ce": ce, "penalty": penalty}

    def begin_epoch(self, epoch: int) -> None:
        early = self.delayed and epoch < self.hyper.penalty_from
        self.weight = 1.0 if early else self.hyper.penalty

    def phase(self) -> Hashable:
        return self.weight


class Coral(Penalised):
    """CORAL: the penalty is the distance between the domains' means and covariances."""

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        return coral(features)


class Irm(Penalised):
    """IRM: one classifier should be the best for every domain.

    The penalty is a product of two gradients, of the even and of the odd rows of a domain. With an
    even number of samples of each domain, both streams of a sample fall into the same half, so
    that only attention makes the halves dependent.

    With two streams and ``hyper.irm_grouping="official"`` the rows, plain ones and then mixed ones,
    are cut into G consecutive parts as in the released code, so that parts mix domains.
    """

    delayed = True

    def group(self, rows: Tensor, streams: int) -> Tensor:
        official = self.hyper.irm_grouping == "official"
        return by_domain(rows, self.groups, 1 if official else streams)

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        return irm_penalty(logits, targets)


class VRex(Penalised):
    """V-REx (Krueger et al., 2021): the penalty is the variance of the domains' cross-entropies.

    A domain's cross-entropy is the mean over its plain and mixed rows, whatever weights the streams
    have in the loss itself.
    """

    delayed = True

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(1).var(correction=0)


class MixStyleMethod(ByDomain):
    """MixStyle: in training, features take on the style of another domain's.

    Styles are mixed inside the network after the stages ``hyper.mixstyle_after``. The network's
    weights and their names do not change.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, class_counts, **options)
        hyper = self.hyper
        insert_mixstyle(
            network, hyper.mixstyle_after, hyper.mixstyle_p, hyper.mixstyle_alpha, self.groups
        )


# MDD: adaptation to a target domain by an adversary that disagrees with the classifier.


#: Standard deviation of the initial weights of the bottleneck and of the classifiers.
BOTTLENECK_DEVIATION, HEAD_DEVIATION = 0.005, 0.01
#: Initial bias of the bottleneck.
BOTTLENECK_BIAS = 0.1
DROPOUT = 0.5


class Mdd(Classifier):
    """A bottleneck with a classifier and an adversary, in place of the network's own classifier.

    Batches hold ``x`` and ``y`` of the source, and ``x_target`` (M, ...): images of the target
    domain without labels. Both domains go through the network, BatchFormer and the bottleneck
    together, so they attend to one another and are normalised together. With two streams the
    classifier and the discrepancy get both streams of each domain.

    Args:
        network: gives pooled features; its classifier is replaced by the identity.
        class_counts: (K,) training images of each class; only their number is used.
    """

    updates: Tensor

    def __init__(self, network: nn.Module, class_counts: Tensor, seed: int, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), seed=seed, **options)
        replace_classifier(network, nn.Identity())
        width, classes = self.hyper.bottleneck, len(class_counts)
        with drawing(seed, "weights", 1):
            self.bottleneck = bottleneck(feature_width(network), width)
            self.head, self.adversary = head(width, classes), head(width, classes)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def classify(self, features: Tensor) -> Tensor:
        """Logits ``(rows, K)`` of features ``(rows, C)``."""
        logits: Tensor = self.head(self.bottleneck(features))
        return logits

    def reversal(self) -> Tensor:
        """The factor of the reversed gradient, which rises from 0; a tensor on the device."""
        highest, time = self.hyper.reversal, self.updates / self.hyper.reversal_updates
        return 2 * highest / (1 + torch.exp(-time)) - highest

    def step(self, batch: Batch) -> dict[str, Tensor]:
        if "x_target" not in batch:
            raise ValueError(
                "mdd needs images of the target domain, x_target, in every batch; this one has "
                f"{', '.join(batch)}. Set data.adapt, and name data.target."
            )
        images = torch.cat((batch["x"], batch["x_target"]))
        narrow = self.bottleneck(self.streams(self.features(images)))
        adversary = self.adversary(reverse_gradient(narrow, self.reversal()))
        sizes = len(batch["x"]), len(batch["x_target"])
        source, target = split_domains(self.head(narrow), *sizes)
        source_adversary, target_adversary = split_domains(adversary, *sizes)
        ce = self.loss(source, batch["y"])
        gamma = self.hyper.mdd_gamma
        # The adversary minimises this, which maximises the discrepancy; the reversed gradient
        # makes the features minimise the discrepancy.
        penalty = -mdd(source, source_adversary, target, target_adversary, gamma)
        return {"loss": ce + self.hyper.penalty * penalty, "ce": ce, "penalty": penalty}

    def deployed(self) -> nn.Module:
        """The network with bottleneck and head as its classifier, one `nn.Sequential`.

        The adversary is dropped.
        """
        network = copy.deepcopy(self.network)
        replace_classifier(network, nn.Sequential(*self.bottleneck, *self.head))
        return network

    def after_update(self) -> None:
        self.updates.add_(1)

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """The backbone at its own rate, BatchFormer at the classifiers' rate times its factor."""
        return self.slow_backbone_groups(optim, self.bottleneck, self.head, self.adversary)


def split_domains(rows: Tensor, source: int, target: int) -> tuple[Tensor, Tensor]:
    """The rows of the source and those of the target, each plain and then mixed.

    Args:
        rows: ``[s, t]`` or, with two streams, ``[s, t, s', t']``.
        source: N, samples of the source.
        target: M, samples of the target.

    >>> split_domains(torch.tensor([1, 2, 9, -1, -2, -9]), 2, 1)
    (tensor([ 1,  2, -1, -2]), tensor([ 9, -9]))
    """
    streams = rows.reshape(-1, source + target, *rows.shape[1:])
    return streams[:, :source].flatten(0, 1), streams[:, source:].flatten(0, 1)


def bottleneck(features: int, width: int) -> nn.Sequential:
    """Features (rows, C) to (rows, B), normalised, rectified and dropped out."""
    linear = nn.Linear(features, width)
    nn.init.normal_(linear.weight, std=BOTTLENECK_DEVIATION)
    nn.init.constant_(linear.bias, BOTTLENECK_BIAS)
    return nn.Sequential(linear, nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(DROPOUT))


def head(width: int, classes: int) -> nn.Sequential:
    """(rows, B) to logits (rows, K), with one hidden layer."""
    first, last = nn.Linear(width, width), nn.Linear(width, classes)
    for linear in (first, last):
        nn.init.normal_(linear.weight, std=HEAD_DEVIATION)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(DROPOUT), last)
