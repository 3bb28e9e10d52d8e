"""Scores of a test set by shots, and what the figures need of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from batchformer.engine.fit import Evaluation
from batchformer.engine.mechanics import Mechanics
from batchformer.engine.method import Method
from batchformer.metrics.shots import LongTailedMetrics, shot_groups, third_groups
from batchformer.tasks.config import LongTailConfig

#: Beyond this many classes a confusion matrix is larger than a run folder should be.
MOST_CLASSES_WITH_CONFUSION = 1000


def evaluate_by_shots(
    method: Method,
    mechanics: Mechanics,
    batches: Iterable[tuple[Tensor, Tensor]],
    counts: Tensor,
    classes: Sequence[str],
    config: LongTailConfig,
) -> Evaluation:
    """Scores in percent by shots.

    Args:
        method: in eval mode.
        mechanics: has the precision.
        batches: normalised images (N, channels, H, W) on the device, and labels (N,), in order.
        counts: (K,) training images of each class.
        classes: K names.
        config: says how classes are grouped.
    """
    groups = third_groups(counts) if config.shots == "thirds" else shot_groups(counts)
    scores = LongTailedMetrics(len(classes), groups)
    correct = []
    for images, labels in batches:
        with mechanics.autocast():
            logits = method.predict(images).float()
        scores.update(logits, labels)
        correct.append((logits.argmax(1) == labels).cpu())
    figures = {
        "per_class": scores.per_class.numpy(),
        "train_counts": counts.numpy(),
        "correct": torch.cat(correct).numpy(),
        "classes": np.array(classes),
    }
    if len(classes) <= MOST_CLASSES_WITH_CONFUSION:
        figures["confusion"] = scores.confusion.to(torch.int32).cpu().numpy()
    return Evaluation({**scores.compute(), **method.remarks()}, figures)
