"""What is seen of a trained method, kept in the folder of its run; a run never fails by it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from torch import nn

from batchformer.insight.look import Arrays, Tell, look
from batchformer.insight.record import FILE, save
from batchformer.lab.data.feeds.test_images import Shown
from batchformer.lab.engine.method import Method
from batchformer.lab.runs.untrained import look_untrained


def seen_of(
    method: Method,
    images: Shown | None,
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
