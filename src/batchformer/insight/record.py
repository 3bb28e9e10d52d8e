"""The arrays that are kept of a trained network for its figures, under 5 MB a run.

K classes are grouped into P bins of similar training count, P at most 100, so matrices stay small
for any K. H is the number of attention heads; layers, and positions where there are several, are
averaged. The three shot groups are many, medium and few, in this order. All is measured on test
images in shuffled batches, without dropout; in every batch a pair is two different samples.

Of every run:
    classes (K,) names; train_counts (K,) training images; shot_of_class (K,) 0, 1 or 2
    counts_of_loader () true if the training counts are unknown and train_counts counts the measured
        samples instead; otherwise missing
    reliability_count, reliability_confidence, reliability_correct (4, 15): predictions by
        confidence, of all classes and of each shot group; sums, not means
    projection (S, 2) plain features on their two principal axes; projection_labels (S,);
        projection_share (2,) of the variance
    separation (3,) by shot group: mean over its classes of the distance from a class mean to the
        nearest other one, over the mean distance of samples from their own class mean
    spread (3,) by shot group: mean distance of samples from their class mean, over that of all
        classes
    cam_thumbnails (M, h, w, 3) uint8; cam_heat (M, a, b) float16 from 0 to 1; cam_labels (M,);
        cam_predictions (M,); cam_confidence (M,) of the label; cam_rows (M,) in the test set;
        cam_layer () its name; all missing where no layer has maps

With BatchFormer also:
    bin_of_class (K,) from 0, the most frequent; bin_pairs (P, P) pairs counted
    attention (H, P, P) sum over pairs of the attention that a sample of the row's bin gives to one
        of the column's bin
    attention_self (H, 2): sum of what samples give to themselves, and how many samples
    attention_same (H, 2), attention_other (H, 2): the same of pairs of one class, and of two
    attention_shots (H, 3, 3) sums, shot_pairs (3, 3) counts
    attention_context (H, 2): with class rows in the batch (module.context), sum of what samples
        give to these rows, and how many samples; all other attention arrays cover samples alone
        and are scaled so that what a sample gives sums to 1
    gradient_abs (K,), gradient_l2 (K,): mean over a class's samples i, and over j != i, of the
        mean absolute value, or the length, of dL_i / df_j on pooled features
    gradient_images_abs (K,), gradient_images_l2 (K,): the same on input images; may be missing
    gradient_samples (K,) samples of each class that were measured
    gradient_untrained_abs (K,), gradient_untrained_l2 (K,): the same on pooled features before any
        training, with random weights and the loss of the last epoch; untrained_correct (), how many
        of the measured images that network classifies correctly; may be missing
    batch_thumbnails (B, N, h, w, 3) uint8, or batch_captions (B, N) if samples are not images, in
        which case there is no cam_* either; batch_labels, batch_predictions (B, N)
    batch_attention (B, H, N, N) float16, rows attend; batch_gradient (B, N, N) float32, the mean
        absolute value of dL_i / df_j, i in the row, 0 on the diagonal
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.files import write_atomically

FILE, MOST_BYTES = "insight.npz", 5 * 10**6  # the file in a run's folder, and how large it may be
#: Bins of classes, bins of confidence, and the names of the shot groups.
MOST_BINS, CONFIDENCES, SHOTS = 100, 15, ("many", "medium", "few")

InsightArrays = Mapping[str, NDArray[Any]]


def save(path: Path, insight: InsightArrays) -> None:
    """Write the arrays; the file is complete or not there."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = dict(insight)
    np.savez_compressed(buffer, **arrays)
    size = buffer.tell()
    if size > MOST_BYTES:
        raise ValueError(
            f"{path} would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: show fewer "
            "or smaller images"
        )
    write_atomically(path, buffer.getvalue())
