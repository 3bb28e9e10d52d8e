"""A small network on frozen features of a long tail: which part of BatchFormer helps?

It reads ``caltech_features.npz`` and ``cifar_features.npz`` in the current folder, which
``image_features`` writes. Arms, seeds and tests are fixed in ``docs/preregistered.md``, row 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from batchformer.insight.classes import shot_groups
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Table
from benchmarks.few_images import ARMS as BALANCED_ARMS
from benchmarks.few_images import BATCH, BEST, HIDDEN, SEEDS, Arm, Source, add_arms, percent, right
from benchmarks.frozen_features import read

UPDATES = 1300
SOURCES = (
    Source("objects", Path("caltech_features.npz"), 0.01),
    Source("CIFAR-100-LT", Path("cifar_features.npz"), 0.02),
)
CROSS_ENTROPY = "none; cross-entropy"
ARMS = {
    title: arm._replace(balanced=True) for title, arm in BALANCED_ARMS.items() if not arm.smoothing
} | {CROSS_ENTROPY: Arm()}
#: The first is the primary test; Holm's correction is over the rest.
CONTRASTS = (
    *((arm, "without") for arm in list(ARMS)[1:]),
    (BEST, 'attend="self"'),
    (BEST, "none; rows normalised, also at test"),
    ("BatchFormer", 'attend="self"'),
)


def measure(settings: BenchSettings, sources: Sequence[Source] = SOURCES) -> Table:
    """Accuracy in percent on all test rows and by shots, and differences on all test rows."""
    seeds = SEEDS[: settings.repeats]
    shots = ("many", "medium", "few")
    table = Table(
        "long_tail_features",
        "A hidden layer and a classifier on frozen features of a long tail",
        ("features of", "second stream", "all", *shots, "difference, 95% interval", "p"),
        settings.environment("float32"),
        notes=[
            f"Balanced Softmax, {HIDDEN} hidden units, SGD with a cosine, encoders at a tenth of "
            f"the rate, {UPDATES} updates of {BATCH}, seeds {seeds[0]} to {seeds[-1]}",
            "p of the first difference of each set is its primary test; the other p-values are "
            "corrected together, by Holm's method",
        ],
    )
    for source in sources:
        train, test = read(source.file)
        groups = shot_groups(train[1].bincount())
        tested = [torch.ones_like(test[1], dtype=torch.bool), *(groups[s][test[1]] for s in shots)]
        found = {
            title: [right(train, test, arm, seed, source.rate, UPDATES) for seed in seeds]
            for title, arm in ARMS.items()
        }
        columns = {
            title: [[percent(rows[part]) for rows in found[title]] for part in tested]
            for title in ARMS
        }
        add_arms(table, source.title, columns, {t: columns[t][0] for t in ARMS}, CONTRASTS)
    return table
