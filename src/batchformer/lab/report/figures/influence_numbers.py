"""Gradients of a sample's loss on others as runs kept them, by class, with their smooth means.

Rare classes are mostly hard ones. Whether it is rarity that goes with large gradients is asked with
the accuracy of classes held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import Insight
from batchformer.lab.report.figures.kept import kept, per
from batchformer.lab.report.figures.learning import Learning, learning
from batchformer.lab.report.figures.rank_correlation import Correlation, correlation, mean_of_known
from batchformer.lab.report.figures.seen import seen_images
from batchformer.lab.report.results.configuration import Group

Measure = Literal["abs", "l2"]
On = Literal["features", "images"]


@dataclass(frozen=True)
class Controlled:
    """What the accuracy of classes has to do with it, over the seeds that kept it.

    Args:
        of_accuracy: accuracy with gradient.
        partial: training count with gradient, accuracy held fixed.
    """

    of_accuracy: Correlation
    partial: Correlation


@dataclass(frozen=True)
class OfArm:
    """Gradients of one arm.

    Args:
        values: mean over seeds by class, (K,), NaN for a class not measured.
        correlation: training count with gradient.
        seeds: how many.
        controlled: None where no run kept its accuracy by class.
        change: see ``change_of_a_loss``; None where that is not known.
        untrained: training count with gradient before training; None where it was not measured.
        learning: what networks have learnt; None where that is not known.
    """

    values: NDArray[Any]
    correlation: Correlation
    seeds: int
    controlled: Controlled | None = None
    change: float | None = None
    untrained: Correlation | None = None
    learning: Learning | None = None

    @property
    def learnt(self) -> bool:
        """Whether the networks have learnt anything, as far as is known."""
        return self.learning is None or self.learning.learnt

    def thirds(self, counts: NDArray[Any]) -> float | None:
        """Mean of the third of the classes that is rarest, over that of the most frequent third.

        None where a class of one third has as many training images as one of the other.

        Args:
            counts: (K,) training images, descending.
        """
        third = len(self.values) // 3
        if not third or counts[third - 1] <= counts[-third]:
            return None
        known = (part[np.isfinite(part)] for part in (self.values[:third], self.values[-third:]))
        frequent, rare = (part.mean() if part.size else 0.0 for part in known)
        return float(rare / frequent) if frequent > 0 else None


@dataclass(frozen=True)
class Influence:
    """K classes from the most to the least training images.

    Args:
        counts: training images, (K,).
        by_arm: the arms with BatchFormer.
        window: classes that a point of the running mean spans; 1 for none.
        measure: mean absolute value, or length, of a gradient.
        on: what the gradient is taken on.
        cumulative: whether the mean over all more frequent classes is drawn too.
        images: test images that were measured, in words.
    """

    counts: NDArray[Any]
    by_arm: dict[str, OfArm]
    window: int
    measure: Measure
    on: On
    cumulative: bool
    images: str = "test images"


def gather(
    group: Group, measure: Measure = "abs", on: On = "features", cumulative: bool = False
) -> Influence | None:
    """What the figure shows, or None where no run kept these gradients."""
    name = f"gradient_{measure}" if on == "features" else f"gradient_images_{measure}"
    before = name.replace("gradient", "gradient_untrained")
    found = kept(group, "train_counts", "gradient_samples", name)
    if not found:
        return None
    first = next(iter(next(iter(found.values())).values()))
    counts = first["train_counts"].astype(np.float64)
    order = np.argsort(-counts, kind="stable")
    controls = kept(group, "train_counts", "gradient_samples", before)
    by_arm = {}
    for arm, runs in found.items():
        by_seed = {seed: _measured(run, name)[order] for seed, run in runs.items()}
        untrained = [_measured(run, before)[order] for run in controls.get(arm, {}).values()]
        values = np.stack(list(by_seed.values()))
        accuracy = {
            seed: right[order] for seed, right in accuracies(group, arm).items() if seed in by_seed
        }
        by_arm[arm] = OfArm(
            mean_of_known(values),
            correlation(counts[order], values),
            len(values),
            _controlled(counts[order], by_seed, accuracy),
            change_of_a_loss(group, arm) if on == "features" else None,
            correlation(counts[order], np.stack(untrained)) if untrained else None,
            learning([run.insight for run in group.of(arm) if run.seed in runs]),
        )
    seen = seen_images(group, int(first["gradient_samples"].sum()))
    window = window_of(len(counts))
    return Influence(counts[order], by_arm, window, measure, on, cumulative, seen.words)


def _measured(run: Insight, name: str) -> NDArray[Any]:
    """Gradients by class, (K,), NaN for a class not measured."""
    return np.where(run["gradient_samples"] > 0, run[name], np.nan).astype(np.float64)


def apart(points: NDArray[Any], share: NDArray[Any]) -> float:
    """How far two features lie apart, the root of the mean square, from the axes that were kept.

    Args:
        points: (S, A) centred features on A principal axes.
        share: (A,) of the variance that lies along them.

    >>> apart(np.array([[3.0, 0.0], [-3.0, 0.0]]), np.array([0.5, 0.0]))
    6.0
    """
    along = float((points.astype(np.float64) ** 2).sum(1).mean())
    total = float(share.sum())
    return float(np.sqrt(2 * along / total)) if total > 0 else float("nan")


def change_of_a_loss(group: Group, arm: str) -> float | None:
    """How far one other sample can change a loss, nats, or None where no run kept enough.

    To first order, where its feature moves as far as two samples lie apart, in the direction that
    changes most; the mean over pairs of samples, classes and seeds. Single pairs reach far more.
    """
    names = ("gradient_samples", "gradient_l2", "projection", "projection_share")
    changes = []
    for run in kept(group, *names).get(arm, {}).values():
        lengths = run["gradient_l2"][run["gradient_samples"] > 0].astype(np.float64)
        if lengths.size:
            changes.append(lengths.mean() * apart(run["projection"], run["projection_share"]))
    known = [change for change in changes if np.isfinite(change)]
    return float(np.mean(known)) if known else None


def accuracies(group: Group, arm: str) -> dict[int, NDArray[Any]]:
    """Percent by class, (K,), by seed, of the networks that were looked at."""
    found = {}
    for run in group.of(arm):
        right, counts = (run.insight_figures.get(name) for name in ("per_class", "train_counts"))
        looked = run.insight.get("train_counts")
        if right is None or counts is None or looked is None or right.shape != counts.shape:
            continue
        # Other counts would be those of other classes, or of another training.
        if np.array_equal(counts, looked):
            found[run.seed] = right.astype(np.float64)
    return found


def _controlled(
    counts: NDArray[Any], gradients: dict[int, NDArray[Any]], accuracy: dict[int, NDArray[Any]]
) -> Controlled | None:
    if not accuracy:
        return None
    right = np.stack(list(accuracy.values()))
    values = np.stack([gradients[seed] for seed in accuracy])
    return Controlled(correlation(right, values), correlation(counts, values, right))


def window_of(classes: int) -> int:
    """An odd number near a tenth of the classes, at least 3; 1 where there are few.

    >>> window_of(8), window_of(10), window_of(100), window_of(1000)
    (1, 3, 11, 101)
    """
    return 1 if classes < 10 else max(3, classes // 10 // 2 * 2 + 1)


def running_mean(values: NDArray[Any], window: int) -> NDArray[Any]:
    """Mean over ``window`` neighbours around each of (K,), fewer at the ends; NaN do not count."""
    half = window // 2
    known = np.isfinite(values)
    sums, sizes = (
        np.concatenate([[0.0], np.cumsum(part)]) for part in (np.where(known, values, 0.0), known)
    )
    places = np.arange(len(values))
    low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    size = sizes[high] - sizes[low]
    return per(sums[high] - sums[low], size)


def cumulative_mean(values: NDArray[Any]) -> NDArray[Any]:
    """Mean over all classes up to each of (K,), as the released code draws it; NaN do not count."""
    known = np.isfinite(values)
    return per(np.cumsum(np.where(known, values, 0.0)), np.cumsum(known))
