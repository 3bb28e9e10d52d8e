"""Arms and metrics: their order, their colours and what a reader should know of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import cycle

from batchformer.lab.config.arms import ARMS as KNOWN_ARMS
from batchformer.lab.config.arms import BASELINE

ARMS = {name: arm.purpose for name, arm in KNOWN_ARMS.items()}
"""Known arms in the order they are shown, with what they are for."""
COLOURS = {name: arm.colour for name, arm in KNOWN_ARMS.items()}
OTHER_COLOURS = ("#2a8c99", "#a3672f", "#6f8f1f", "#b05fc0")

METRICS = {
    "all": "All",
    "many": "Many",
    "medium": "Medium",
    "few": "Few",
    "top1": "Top-1",
    "top5": "Top-5",
    "mean_class": "Class mean",
    "ece": "ECE",
    "average": "Average",
    "auc": "AUC",
    "hm": "HM",
    "seen": "Seen",
    "unseen": "Unseen",
    "attribute": "Attribute",
    "object": "Object",
    "ap": "COCO AP",
    "ap50": "COCO AP50",
    "ap75": "COCO AP75",
    "voc07_ap": "VOC07 AP",
    "voc07_ap50": "VOC07 AP50",
    "voc07_ap75": "VOC07 AP75",
    "voc_ap": "VOC AP",
    "voc_ap50": "VOC AP50",
    "voc_ap75": "VOC AP75",
    "knn": "k-NN",
    "knn_many": "k-NN, many",
    "knn_medium": "k-NN, medium",
    "knn_few": "k-NN, few",
    "alignment": "Alignment",
    "uniformity": "Uniformity",
    "feature_std": "Feature SD",
    "influence": "Change of a loss by another sample",
    "rarity": "Training images and gradient",
    "rarity_at_accuracy": "The same at fixed accuracy",
}
"""Known metrics in the order they are shown, with their labels."""

MEANINGS = {
    "all": "accuracy on all test images",
    "top1": "accuracy on all test images",
    "top5": "share of test images whose class is among the five likeliest",
    "mean_class": "mean of the accuracies of the classes",
    "ece": "expected calibration error, which is how far confidence is from accuracy",
    "average": "mean accuracy over the test domains",
    "auc": "area under the curve of accuracy on seen against unseen classes or pairs, as a bias "
    "moves predictions from one to the other",
    "hm": "harmonic mean of the accuracies on seen and on unseen classes or pairs",
    "knn": "accuracy of a vote among the nearest training features",
}
"""What a metric is, where its label does not say it; for sentences such as "ECE is the ..."."""

LOWER_IS_BETTER = frozenset({"ece", "loss", "nll", "val_loss", "without_swad_val_loss"})

CORRELATIONS = frozenset({"rarity", "rarity_at_accuracy"})  # rank correlations over classes

DESCRIPTIVE = frozenset({"alignment", "uniformity", "feature_std", "influence", *CORRELATIONS})
"""Metrics that describe features or influence, where neither more nor less is better: shown with
their intervals, never tested. Features that are all the same are perfectly aligned, and useless."""

VALIDATION = frozenset({"val", "val_loss", "without_swad_val", "without_swad_val_loss"})
"""Scores of validation data, which choose the evaluation that is reported: shown with their
intervals, never tested. The best of several is too high, and more so where scores vary more."""

UNTESTED = DESCRIPTIVE | VALIDATION


def in_words(arm: str) -> str:
    """The name of the reference arm, as it stands in a sentence.

    >>> in_words("baseline"), in_words("batchformer_self")
    ('the baseline', 'batchformer_self')
    """
    return f"the {arm}" if arm == BASELINE else arm


def sorted_arms(arms: Iterable[str]) -> list[str]:
    """Distinct arms: the baseline, the known ones, then others by name."""
    return _in_order(arms, ARMS)


def sorted_metrics(metrics: Iterable[str], headline: str | None = None) -> list[str]:
    """Distinct metrics: the headline of a task, the known ones, then others by name.

    >>> sorted_metrics(["few", "real", "all"]), sorted_metrics(["mean_class", "real"], "real")
    (['all', 'few', 'real'], ['real', 'mean_class'])
    """
    return sorted(_in_order(metrics, METRICS), key=lambda name: name != headline)


def metric_label(metric: str) -> str:
    """How a metric is called in a table."""
    return METRICS.get(metric, metric.replace("_", " "))


def main_metric(metrics: Iterable[str]) -> str | None:
    """The first metric that is tested; if none is tested, the first of all.

    >>> main_metric(["alignment", "knn"]), main_metric(["uniformity"]), main_metric([])
    ('knn', 'uniformity', None)
    """
    ordered = list(metrics)
    return next(iter([*(name for name in ordered if name not in UNTESTED), *ordered]), None)


def decimals(metric: str) -> int:
    """Decimals that a metric is written with: percents have two, smaller scales three.

    >>> decimals("all"), decimals("uniformity")
    (2, 3)
    """
    return 3 if metric in DESCRIPTIVE - CORRELATIONS else 2


def bounds(metric: str) -> tuple[float, float]:
    """The least and the greatest value that a metric can have; most are percents.

    >>> bounds("all"), bounds("val_loss"), bounds("uniformity"), bounds("rarity")
    ((0.0, 100.0), (0.0, inf), (-inf, 0.0), (-1.0, 1.0))
    """
    if metric in CORRELATIONS:
        return -1.0, 1.0
    if metric == "uniformity":  # the logarithm of a mean of values up to 1
        return -math.inf, 0.0
    if metric in DESCRIPTIVE or (metric in LOWER_IS_BETTER and metric != "ece"):
        return 0.0, math.inf
    return 0.0, 100.0


def arm_colours(arms: Iterable[str]) -> dict[str, str]:
    """A colour for every arm; a known arm has the same one on every page."""
    spare = cycle(OTHER_COLOURS)
    return {arm: COLOURS.get(arm) or next(spare) for arm in sorted_arms(arms)}


def _in_order(found: Iterable[str], known: dict[str, str]) -> list[str]:
    rank = {name: i for i, name in enumerate(known)}
    return sorted(set(found), key=lambda name: (rank.get(name, len(rank)), name))
