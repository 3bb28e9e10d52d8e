"""Insight arrays of a run: of its trained and of an untrained network."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from batchformer.insight.images import TestImages
from batchformer.insight.look import (
    BATCH,
    MEASURED,
    Arrays,
    CountedImages,
    Tell,
    batches_of,
    look,
    measure,
    measured_rows,
    nearly_equal,
)
from batchformer.insight.record import FILE, save
from batchformer.insight.relations import Relations
from batchformer.lab.engine.bn_recalibration import recalibrate_norms
from batchformer.lab.engine.method import Method

# The same figures of a network that has learnt nothing: what of them comes with the loss alone.
#
# The loss of a rare class is larger from the start where a method weighs classes, and so are its
# gradients on other samples. Only what an untrained network does not show was learnt.


def look_untrained(
    relations: Relations,
    images: TestImages,
    *,
    seed: int = 0,
    measured: int = MEASURED,
    batch: int = BATCH,
    tell: Tell = lambda done, total: None,
) -> Arrays:
    """Gradients on pooled features and accuracy of an untrained network, on the same batches.

    Its batch normalisation, which has seen no image yet, takes the statistics of these: otherwise
    features would grow from layer to layer as they do in no training.

    Args:
        relations: of the network with random weights, and an encoder; it is changed.
        images: of the test set.
        seed: of the order in batches, that of the trained network.
        measured: images, at most.
        batch: samples of a batch, at most.
        tell: as for :func:`batchformer.insight.look.look`.

    Returns:
        The arrays with "untrained" in their names of :mod:`batchformer.insight.record`.
    """
    rows = measured_rows(images.labels, measured, seed)
    with torch.no_grad():
        _measure_norms(relations, images, rows, batch)
        counted = CountedImages(images, tell, batches_of(len(rows), batch))
        found = measure(relations, counted, rows, batch, steps=0)
    return {
        "gradient_untrained_abs": found["gradient_abs"],
        "gradient_untrained_l2": found["gradient_l2"],
        "untrained_correct": np.array(found["reliability_correct"][0].sum()),
    }


def _measure_norms(relations: Relations, images: TestImages, rows: Tensor, batch: int) -> None:
    module: nn.Module = relations.module
    module.train()
    with recalibrate_norms(module) as norms:
        module.eval()
        for norm in norms:
            norm.train()
        for x in images.batches(rows, nearly_equal(len(rows), batch)) if norms else ():
            relations.features(x)
    module.eval()


# What is seen of a trained method, kept in the folder of its run; a run never fails by it.


def seen_of(
    method: Method,
    images: TestImages | None,
    seed: int,
    untrained: Callable[[], Method] | None = None,
    tell: Tell = lambda done, total: None,
) -> Arrays | None:
    """What is to be seen of a method; None if there is nothing of the kind.

    Args:
        method: as it is scored.
        images: of the test set; None where a task shows none.
        seed: of the run.
        untrained: builds the same method with random weights, a control for what BatchFormer does.
        tell: as for :func:`batchformer.insight.look.look`.
    """
    relations = method.relations()
    if relations is None or images is None:
        return None
    found = look(relations, images, network=network_of(method), seed=seed, tell=tell)
    control = untrained().relations() if untrained and relations.encoder is not None else None
    if control is not None:
        found |= look_untrained(control, images, seed=seed, tell=tell)
    return found


def network_of(method: Method) -> nn.Module:
    """The part of a method that Grad-CAM looks into."""
    network = getattr(method, "network", None)
    return network if isinstance(network, nn.Module) else method


def keep(seen: Callable[[], Arrays | None], folder: Path, title: str) -> bool:
    """Write the record; False if there is nothing to see, or a line on stderr says what failed.

    Args:
        seen: looks.
        folder: of the run.
        title: of the run.
    """
    try:
        arrays = seen()
        if arrays is not None:
            save(folder / FILE, arrays)
    except Exception as error:  # whatever it is, the result of the run is worth more
        words = f"{title}: no figures of relations: {type(error).__name__}: {error}"
        print(words.splitlines()[0], file=sys.stderr, flush=True)
        return False
    return arrays is not None
