"""Does attention reach the whole batch? A batch larger than small groups of samples."""

from __future__ import annotations

from torch import Tensor

from batchformer.nn.streams import leaves
from batchformer.plug.example import Batch
from batchformer.plug.noise import halved
from batchformer.plug.observe import PROBE, Experiment, Pass, moved, repeated, source_of, taken
from batchformer.plug.row_tests import Picker, row_orders

LARGER, MANY = 8, 32
"""Samples of the larger batch; many where a model and its inputs are small."""


def larger_batch(experiment: Experiment) -> tuple[Batch, Pass] | None:
    """More samples than attention in small groups would reach, and the outputs for them.

    They are fewer where a model or its inputs are large, and large images have half the resolution
    where the model takes that. None if the model takes no more rows than it was given.
    """
    batch = experiment.batch
    inputs = [part for _, part in leaves((batch.args, batch.kwargs)) if isinstance(part, Tensor)]
    size = sum(part.numel() for part in inputs) // batch.rows
    weights = sum(p.numel() for p in experiment.model.parameters())
    larger = repeated(batch, MANY if weights <= 2**20 and size <= 2**14 else LARGER)
    smaller = halved(larger)
    for each in (smaller, larger) if smaller is not larger else (larger,):
        try:
            return each, experiment.run(each, grad=False)
        except Exception:  # the model takes images of one size alone, or no more rows
            continue
    return None


def unreached(
    experiment: Experiment, larger: Batch, before: Pass, pick: Picker, order: str | None
) -> tuple[int, int] | None:
    """How many mixed rows of a larger batch do not depend on the first sample, and its size.

    A row may depend on it and yet not move, where attention gives all weight to a few samples. So
    the group of such a row is found, the rows that move with its own sample, and all samples
    outside the group are replaced. If the row does not move even then, groups are apart.

    Args:
        before: the outputs for the larger batch.
        order: of the rows; None if all rows are mixed.
    """
    n = larger.rows
    mixed = list(range(n)) if order is None else row_orders(n)[order][1]
    if any(len(rows) <= mixed[-1] for rows in pick(before)):
        return None

    def moves(index: list[int]) -> Tensor:
        after = experiment.run(taken(larger, index), grad=False)
        return moved(pick(before), pick(after))[mixed]

    rows, other = list(range(n)), source_of(0, PROBE)
    reached = moves([other, *rows[1:]])
    reached[0] = True
    if reached.all():
        return None
    row = int((~reached).nonzero()[-1])
    group = moves([*rows[:row], other if row % PROBE == 0 else 0, *rows[row + 1 :]])
    group[row] = True
    if (group & reached).any():
        return None
    apart = not moves([i if group[i] else row for i in rows])[row]
    return (int((~reached).sum()), n) if apart else None
