"""Measure all that the figures need of a trained network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from batchformer.insight import draws
from batchformer.insight.cam import NoMaps, grad_cam
from batchformer.insight.class_sums import AttentionSums, InfluenceSums, without_self
from batchformer.insight.gradient import BatchInfluence, batch_influence
from batchformer.insight.images import LabelledImages
from batchformer.insight.measures import principal_axes, reliability, separation_and_spread
from batchformer.insight.relations import Relations
from batchformer.plug.preserve import preserve_state

MEASURED, BATCH = 4096, 128  # images that are measured, at most, and samples of a batch
#: Images in the projection, images for Grad-CAM, batches to explore, and samples in each of them.
PROJECTED, CAM, EXPLORED, EXPLORED_SAMPLES = 2000, 48, 3, 64
STEPS = 2  # other images of a batch on which the gradient of each loss is measured
SIDE = 48  # pixels of a thumbnail, at most

Arrays = dict[str, NDArray[Any]]
Tell = Callable[[int, int], None]  # progress: the batches that are done, and their total


def look(
    relations: Relations,
    images: LabelledImages,
    *,
    network: nn.Module,
    seed: int = 0,
    layer: str | None = None,
    measured: int = MEASURED,
    batch: int = BATCH,
    steps: int = STEPS,
    captions: Sequence[str] | None = None,
    tell: Tell = lambda done, total: None,
) -> Arrays:
    """Look at a network, and leave it as it was: modes, buffers, gradients and random states.

    Which images are looked at depends on their labels alone, so all arms and seeds of a comparison
    use the same ones: up to `measured`, drawn evenly over classes; of these 2,000 for the
    projection; 48 for Grad-CAM, evenly over shot groups; and up to three batches to explore, with
    classes as frequent as in training. The seed shuffles the measured images into batches.
    Everything is computed in the precision of the network and summed in float64.

    Args:
        network: the part that Grad-CAM looks into.
        layer: the layer for Grad-CAM. ``released`` is that of the paper's code; by default it is
            found. A network without a layer with maps has no Grad-CAM.
        measured: the largest number of images to measure.
        batch: the largest number of samples in a batch; batches are nearly equal in size.
        steps: S, the number of other samples on whose input images each loss's gradient is
            measured; 0 for none.
        captions: a text for each sample, if samples are not images. There are then no thumbnails
            and no Grad-CAM.
        tell: is called after each batch with the number of batches done and their total.

    Returns:
        Arrays by the names of :mod:`batchformer.insight.record`.
    """
    with preserve_state(relations.module), torch.inference_mode(False), torch.no_grad():
        relations.module.eval()
        classes = images.classes
        found: Arrays = {
            "classes": np.array(classes.names),
            "train_counts": classes.train_counts.cpu().numpy(),
            "shot_of_class": classes.shot_of_class.cpu().numpy(),
        }
        rows = measured_rows(images.labels, measured, seed)
        draw = draws.generator_of(draws.EXPLORED)
        explored = draws.like_training(
            images.labels, classes.train_counts, EXPLORED, EXPLORED_SAMPLES, draw
        )
        total = batches_of(len(rows), batch) + 1 + len(explored) * (relations.encoder is not None)
        counted = CountedImages(images, tell, total)
        found |= measure(relations, counted, rows, batch, steps)
        if captions is None:
            found |= _cam(relations, counted, network, layer)
        if relations.encoder is not None:
            found |= _explored(relations, counted, explored, captions)
    return found


class CountedImages:
    """Images that report progress: ``tell`` is called after work on each of ``total`` batches."""

    def __init__(self, images: LabelledImages, tell: Tell, total: int) -> None:
        self.classes, self.labels = images.classes, images.labels
        self.thumbnails = images.thumbnails
        self.images, self.tell, self.total, self.done = images, tell, total, 0

    def batches(self, rows: Tensor, size: int) -> Iterator[Any]:
        for batch in self.images.batches(rows, size):
            yield batch
            self.done += 1
            self.tell(self.done, self.total)


def look_cam(
    relations: Relations, images: LabelledImages, network: nn.Module, layer: str
) -> Arrays:
    """Measure only Grad-CAM, at a layer of this name, or at the ``released`` one.

    The network is left as it was. Returns the arrays that begin with ``cam_`` in
    :mod:`batchformer.insight.record`.
    """
    with preserve_state(relations.module), torch.no_grad():
        relations.module.eval()
        return _cam(relations, images, network, layer)


def measured_rows(labels: Tensor, most: int, seed: int) -> Tensor:
    """Rows of the images that are measured, at most ``most`` of (M,), shuffled by the seed."""
    rows = draws.balanced(labels, most, draws.generator_of(draws.MEASURED))
    return rows[torch.randperm(len(rows), generator=draws.generator_of(draws.MEASURED, seed))]


def measure(
    relations: Relations, images: LabelledImages, rows: Tensor, batch: int, steps: int
) -> Arrays:
    """Calibration and features of any network; with BatchFormer also attention and influence."""
    size = nearly_equal(len(rows), batch)
    classes, labels = images.classes, images.labels[rows]
    features, confidence, predictions = [], [], []
    encoder = relations.encoder
    attention = AttentionSums(classes, encoder.heads) if encoder else None
    gradients = InfluenceSums(len(classes), steps)
    cuts = zip(torch.split(rows, size), torch.split(labels, size), strict=True)
    for x, (own, y) in zip(images.batches(rows, size), cuts, strict=True):
        plain = relations.features(x)
        finite = plain.isfinite().flatten(1).all(1).cpu()
        if not finite.all():
            raise ValueError(
                f"The network's features of test sample {int(own[~finite].min()) + 1} are NaN or "
                "infinite. Look for such values in this sample, or in the weights."
            )
        probabilities = relations.classify(plain).softmax(1)
        highest = probabilities.max(1)
        features.append(plain.cpu())
        confidence.append(highest.values.cpu())
        predictions.append(highest.indices.cpu())
        if attention is not None and len(y) > 1:
            # At most N - 1 steps: the next one would be the sample itself.
            seen = batch_influence(relations, plain, y.to(plain.device), min(steps, len(y) - 1))
            attention.add(seen.attention, y, seen.to_context)
            gradients.add(seen, y, relations, x)
    every = torch.cat(features)
    shot = classes.shot_of_class.cpu()
    right = torch.cat(predictions) == labels
    found = reliability(torch.cat(confidence), right, shot[labels])
    separation, spread = separation_and_spread(every, labels, shot)
    found |= {"separation": separation.numpy(), "spread": spread.numpy()}
    found |= _projection(every, labels, rows)
    if attention is not None:
        found |= attention.arrays() | gradients.arrays()
    return found


def _projection(features: Tensor, labels: Tensor, rows: Tensor) -> Arrays:
    # Restore the order of the test set: the seed must not change which images are chosen.
    order = rows.argsort()
    features, labels = features[order], labels[order]
    chosen = draws.balanced(labels, PROJECTED, draws.generator_of(draws.PROJECTED))
    points, share = principal_axes(features[chosen])
    return {
        "projection": points.numpy().astype(np.float32),
        "projection_labels": labels[chosen].numpy(),
        "projection_share": share.numpy(),
    }


def _cam(
    relations: Relations, images: LabelledImages, network: nn.Module, layer: str | None
) -> Arrays:
    shot = images.classes.shot_of_class
    rows = draws.by_shots(images.labels, shot, CAM, draws.generator_of(draws.CAM))
    labels = images.labels[rows]
    (x,) = images.batches(rows, len(rows))

    def classify(some: Tensor) -> Tensor:
        return relations.classify(relations.features(some))

    try:
        cam = grad_cam(classify, network, x, labels.to(x.device), layer)
    except NoMaps:
        return {}
    logits = cam.logits.cpu()
    # NumPy has no bfloat16.
    shares = logits.softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return {
        "cam_thumbnails": images.thumbnails(rows, SIDE).numpy(),
        "cam_heat": cam.heat.cpu().half().numpy(),
        "cam_labels": labels.numpy(),
        "cam_predictions": logits.argmax(1).numpy(),
        "cam_confidence": shares.gather(1, labels[:, None])[:, 0].numpy(),
        "cam_rows": rows.numpy(),
        "cam_layer": np.array(cam.layer),
    }


def _explored(
    relations: Relations, images: LabelledImages, rows: Tensor, captions: Sequence[str] | None
) -> Arrays:
    """Measure all pairs of samples in the batches with these rows (B, N)."""
    labels = images.labels[rows]
    seen: list[BatchInfluence] = []
    predictions: list[Tensor] = []
    for x, y in zip(images.batches(rows.flatten(), rows.shape[1]), labels, strict=True):
        plain = relations.features(x)
        predictions.append(relations.classify(plain).argmax(1).cpu())
        seen.append(batch_influence(relations, plain, y.to(plain.device)))
    if captions is None:
        small = images.thumbnails(rows.flatten(), SIDE)
        shown = {"batch_thumbnails": small.view(*rows.shape, *small.shape[1:]).numpy()}
    else:
        texts = np.array([captions[int(row)] for row in rows.flatten()])
        shown = {"batch_captions": texts.reshape(rows.shape)}
    return {
        **shown,
        "batch_labels": labels.numpy(),
        "batch_predictions": torch.stack(predictions).numpy(),
        "batch_attention": _stacked(one.attention for one in seen).astype(np.float16),
        "batch_gradient": _stacked(without_self(one.absolute) for one in seen).astype(np.float32),
    }


def _stacked(parts: Iterable[Tensor]) -> NDArray[Any]:
    array: NDArray[Any] = torch.stack([part.cpu().double() for part in parts]).numpy()
    return array


def batches_of(count: int, most: int) -> int:
    """How many batches of :func:`nearly_equal` size there are."""
    return -(-count // nearly_equal(count, most))


def nearly_equal(count: int, most: int) -> int:
    """A batch size, at most `most`, for which the last batch is not much smaller.

    Attention per pair depends on how many samples share it.

    >>> nearly_equal(899, 128), nearly_equal(4096, 128), nearly_equal(129, 128)
    (113, 128, 65)
    """
    return -(-count // -(-count // most))
