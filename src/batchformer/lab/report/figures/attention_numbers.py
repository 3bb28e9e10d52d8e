"""Attention between samples as runs kept it, measured against uniform attention.

By uniform attention every sample of a batch of N, itself included, has weight 1 / N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import Insight
from batchformer.lab.metrics.intervals import Summary, summary
from batchformer.lab.report.figures.kept import kept, per
from batchformer.lab.report.figures.rank_correlation import mean_of_known
from batchformer.lab.report.figures.seen import seen_images
from batchformer.lab.report.results.configuration import Group

NAMES = (
    "train_counts",
    "bin_of_class",
    "bin_pairs",
    "attention",
    "attention_self",
    "attention_same",
    "attention_other",
    "attention_shots",
    "shot_pairs",
)
MOST_NAMES = 10
UNIFORM = 0.01
"""How far from uniform attention, as a part of it, what is called uniform may lie."""
TARGETS = ("itself", "others of its class", "other classes")


@dataclass(frozen=True)
class Share:
    """Part of a sample's attention, from 0 to 1, over seeds, and what uniform attention gives."""

    measured: Summary
    uniform: float


@dataclass(frozen=True)
class OfArm:
    """Attention of one arm; ratios are to uniform attention, NaN where no pair was seen.

    Args:
        ratio: (P, P), rows attend; mean over heads and seeds.
        pairs: (P, P) how many were seen, all seeds together.
        heads: (H, P, P) of the first seed alone: heads of two trainings have nothing in common.
        shares: by ``TARGETS``, mean over heads.
        flow: (3, 3) part of the attention of a shot group's samples that goes to others of each.
        flow_ratio: (3, 3) the same by pair, to uniform attention.
        seeds: how many.
        deviation: the farthest that a cell, or what samples give to themselves, lies from uniform
            attention in any head and seed, as a part of it.
    """

    ratio: NDArray[Any]
    pairs: NDArray[Any]
    heads: NDArray[Any]
    shares: dict[str, Share]
    flow: NDArray[Any]
    flow_ratio: NDArray[Any]
    seeds: int
    deviation: float

    @property
    def uniform(self) -> bool:
        """Whether every head attends to all samples alike."""
        return self.deviation <= UNIFORM


@dataclass(frozen=True)
class Attention:
    """P bins of classes from the most to the least frequent.

    Args:
        counts: mean training images of a bin's classes, (P,).
        together: most classes in one bin.
        batch: samples of a batch, the mean over batches.
        by_arm: arms with BatchFormer.
        main: the arm whose maps are drawn.
        names: of the classes, where every bin is one and few enough are named along an axis.
        images: test images that were seen, in words.
    """

    counts: NDArray[Any]
    together: int
    batch: float
    by_arm: dict[str, OfArm]
    main: str
    names: tuple[str, ...] = ()
    images: str = "test images"

    @property
    def groups(self) -> list[int]:
        """Places in ``SHOTS`` of the groups whose samples were seen."""
        flow = self.by_arm[self.main].flow
        return [i for i in range(len(flow)) if np.isfinite(flow[i]).any()]


def gather(group: Group, arm: str | None = None) -> Attention | None:
    """What the figure shows, or None where no run kept its attention.

    Args:
        group: of runs.
        arm: whose maps are drawn; by default batchformer, else the first that has them.
    """
    found = kept(group, *NAMES)
    if not found or (arm is not None and arm not in found):
        return None
    main = arm or ("batchformer" if "batchformer" in found else next(iter(found)))
    by_arm = {name: _of_arm(list(runs.values())) for name, runs in found.items()}
    first = next(iter(found[main].values()))
    bins = first["bin_of_class"].astype(np.int64)
    size = np.bincount(bins, minlength=len(first["bin_pairs"]))
    sums = np.bincount(bins, first["train_counts"], minlength=len(first["bin_pairs"]))
    counts, together = sums / np.maximum(size, 1), int(size.max())
    names = _names(group, main, bins) if together == 1 and len(size) <= MOST_NAMES else ()
    seen = seen_images(group, int(first["attention_self"][0, 1]))
    return Attention(counts, together, _batch(first), by_arm, main, names, seen.words)


def _names(group: Group, arm: str, bins: NDArray[Any]) -> tuple[str, ...]:
    """Names by bin, each of one class; none where no run has them."""
    for run in group.of(arm):
        names = run.insight.get("classes")
        if names is not None and names.shape == bins.shape:
            return tuple(str(names[k]) for k in np.argsort(bins))
    return ()


def _batch(run: Insight) -> float:
    """N: every sample has itself and N - 1 pairs."""
    samples = float(run["attention_self"][0, 1])
    return 1.0 + float(run["bin_pairs"].sum()) / samples


def _of_arm(runs: list[Insight]) -> OfArm:
    ratios = [_ratio(run["attention"], run["bin_pairs"], run) for run in runs]
    flows = [_ratio(run["attention_shots"], run["shot_pairs"], run) for run in runs]
    return OfArm(
        mean_of_known(np.stack([ratio.mean(0) for ratio in ratios])),
        np.sum([run["bin_pairs"] for run in runs], 0),
        ratios[0],
        _shares(runs),
        mean_of_known(np.stack([_flow(run) for run in runs])),
        mean_of_known(np.stack([flow.mean(0) for flow in flows])),
        len(runs),
        max(
            float(np.nanmax(np.abs(part - 1), initial=0.0))
            for run, ratio in zip(runs, ratios, strict=True)
            for part in (ratio, _to_themselves(run))
        ),
    )


def _to_themselves(run: Insight) -> NDArray[Any]:
    """Mean weight of a sample for itself over uniform weight, (H,)."""
    sums, samples = run["attention_self"].T
    return per(_batch(run) * sums.astype(np.float64), samples)


def _ratio(sums: NDArray[Any], pairs: NDArray[Any], run: Insight) -> NDArray[Any]:
    """Mean weight of a pair over uniform weight, (H, P, P) of sums and (P, P) of counts."""
    return per(_batch(run) * sums.astype(np.float64), pairs)


def _shares(runs: list[Insight]) -> dict[str, Share]:
    names = ("attention_self", "attention_same", "attention_other")
    shares = {}
    for target, name in zip(TARGETS, names, strict=True):
        measured, uniform = [], []
        for run in runs:
            samples = float(run["attention_self"][0, 1])
            measured.append(float(run[name][:, 0].mean()) / samples)
            uniform.append(float(run[name][0, 1]) / samples / _batch(run))
        shares[target] = Share(summary(measured, within=(0.0, 1.0)), float(np.mean(uniform)))
    return shares


def _flow(run: Insight) -> NDArray[Any]:
    pairs = run["shot_pairs"].astype(np.float64)
    # A sample of the row has N - 1 others, so this is how many samples the row has.
    samples = pairs.sum(1, keepdims=True) / (_batch(run) - 1)
    return per(run["attention_shots"].astype(np.float64).mean(0), samples)
