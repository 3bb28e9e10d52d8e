"""Had the test images been others: a bootstrap over them, for the networks as they are trained."""

from __future__ import annotations

from batchformer.lab.metrics.intervals import FEWEST_SEEDS, ImageInterval, bootstrap_interval
from batchformer.lab.report.results.configuration import Group


def over_images(group: Group, arm: str) -> ImageInterval | None:
    """Difference of accuracy (arm - reference) with its interval over TEST IMAGES, not seeds.

    The difference of each image is averaged over the seeds both arms have. None where fewer than
    three pairs of runs kept their answers (``correct``, shape (M,)), or on test sets of several
    sizes: with two seeds no interval of any kind is given.
    """
    import numpy as np

    reference = {run.seed: run for run in group.of(group.reference)}
    total, pairs = np.zeros(0, dtype=np.int64), 0
    for run in group.of(arm):
        if run.seed not in reference:
            continue
        right, left = run.figures.get("correct"), reference[run.seed].figures.get("correct")
        if right is None or left is None or right.ndim != 1 or right.shape != left.shape:
            continue
        # Summed as integers, so that images with equal answers have equal values.
        difference = right.astype(np.int64) - left.astype(np.int64)
        if pairs and difference.shape != total.shape:
            return None
        total = difference + (total if pairs else 0)
        pairs += 1
    if pairs < FEWEST_SEEDS or not total.size:
        return None
    return bootstrap_interval((total / pairs).tolist())
