"""Scores of a test set by shots or highest answers, and facts about a long-tailed data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from batchformer.insight.classes import shot_groups, third_groups
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.metrics.shots import LongTailedMetrics

#: With more classes the confusion matrix would be too large for a run folder.
MOST_CLASSES_WITH_CONFUSION = 1000
#: The k of the top-k accuracy.
HIGHEST = 5


def evaluate_by_shots(
    method: Method,
    optimizer_step: OptimizerStep,
    batches: Iterable[tuple[Tensor, Tensor]],
    counts: Tensor,
    classes: Sequence[str],
    config: LongTailConfig,
) -> Evaluation:
    """Scores in percent, as the configuration asks for them.

    By shots: ``all``, ``many``, ``medium``, ``few``, ``mean_class`` and ``ece``. The highest
    answers: ``top1``, ``top5``, ``mean_class`` and ``ece``. Both: by shots, and ``top5``. Five
    classes or fewer have no ``top5``, which would always be right.

    Args:
        method: in eval mode.
        optimizer_step: has the precision.
        batches: normalised images (N, channels, H, W) on the device, and labels (N,), in order;
            with several ranks, the images that this rank scores, and the labels of all.
        counts: (K,) training images of each class.
        classes: K names.
        config: says how classes are grouped, and which scores are given.
    """
    groups = third_groups(counts) if config.shots == "thirds" else shot_groups(counts)
    scores = LongTailedMetrics(len(classes), groups)
    correct, among_highest = [], []
    with_highest = config.scores != "shots" and len(classes) > HIGHEST
    for images, labels in batches:
        with optimizer_step.autocast():
            logits = all_rows(method.predict(images).float(), len(labels))
        scores.update(logits, labels)
        correct.append((logits.argmax(1) == labels).cpu())
        if with_highest:
            among_highest.append(in_top(logits, labels, HIGHEST))
    figures = {
        "per_class": scores.per_class.numpy(),
        "train_counts": counts.numpy(),
        "correct": torch.cat(correct).numpy(),
        "classes": np.array(classes),
    }
    if len(classes) <= MOST_CLASSES_WITH_CONFUSION:
        figures["confusion"] = scores.confusion.to(torch.int32).cpu().numpy()
    metrics = scores.compute()
    highest = {}
    if with_highest:
        highest["top5"] = 100.0 * float(torch.cat(among_highest).double().mean())
    if config.scores == "top":
        rest = {name: metrics[name] for name in ("mean_class", "ece")}
        metrics = {"top1": metrics["all"], **highest, **rest}
    return Evaluation({**metrics, **highest, **method.remarks()}, figures)


def in_top(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """(N,) bool: whether the label (N,) is one of the `count` highest of the logits (N, K)."""
    return (logits.topk(count, dim=1).indices == labels[:, None]).any(1)


# Facts about the data, for the run folder and before training


class LongTailed(Protocol):
    """A long-tailed data set, in memory or in files."""

    @property
    def name(self) -> str: ...
    @property
    def train_sha256(self) -> str: ...
    @property
    def split_sha256(self) -> str: ...
    @property
    def train(self) -> Sized: ...
    @property
    def test(self) -> Sized: ...
    @property
    def train_counts(self) -> Tensor: ...


def split_facts(data: LongTailed) -> dict[str, Any]:
    """Name of the split, its hash and that of its training part, its sizes, and the sizes of the
    largest and smallest class."""
    counts = data.train_counts
    return {
        "name": data.name,
        "split_sha256": data.split_sha256,
        "train_sha256": data.train_sha256,
        "train": len(data.train),
        "test": len(data.test),
        "largest_class": int(counts.max()),
        "smallest_class": int(counts.min()),
    }


def class_sizes(counts: Tensor, config: LongTailConfig) -> str:
    """One line with the numbers of classes and training images, and of classes by shots.

    Args:
        counts: (K,) training images of each class.
        config: says how classes are grouped, and whether scores are by shots.

    >>> import torch
    >>> class_sizes(torch.tensor([1200, 60, 5]), LongTailConfig())
    '3 classes, 1,265 training images: 1,200 in the largest class, 5 in the smallest; \
1 many, 1 medium, 1 few'
    """
    line = (
        f"{len(counts)} classes, {int(counts.sum()):,} training images: {int(counts.max()):,} in "
        f"the largest class, {int(counts.min()):,} in the smallest"
    )
    if config.scores == "top":
        return line
    thirds = config.shots == "thirds"
    groups = third_groups(counts) if thirds else shot_groups(counts)
    shots = ", ".join(f"{int(mask.sum())} {name}" for name, mask in groups.items())
    return f"{line}; {shots}" + (" (thirds by training images)" if thirds else "")
