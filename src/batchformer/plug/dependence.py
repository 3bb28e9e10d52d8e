"""Which rows depend on which samples by their gradients, where replacing samples shows nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from batchformer.plug.observe import Experiment, Pass, moved
from batchformer.plug.row_tests import Picker

FAINT = 1e-5
"""A gradient that is smaller, beside the largest of the same row, is next to nothing."""


def look_alike(
    before: Sequence[Tensor], after: Sequence[Tensor], shifts: Tensor, samples: int
) -> bool:
    """Whether replacing a sample by another shows next to nothing in the outputs.

    The rows of the replaced sample itself, one of each stream, move clearly in most networks.

    Args:
        before: the outputs, N or 2N rows each.
        after: the same with one sample replaced.
        shifts: which rows moved by more than rounding, (rows,).
    """
    streams = len(shifts) // samples
    clearly = int(moved(before, after, tolerance=1e-3).sum())
    return clearly < streams and int(shifts.sum()) < samples + streams - 1


def dependence(experiment: Experiment, pick: Picker) -> Tensor | None:
    """Which rows depend on which samples by their gradients, (rows, N).

    A gradient needs no second pass to compare with: noise does not matter, nor do differences that
    are lost in rounding. None where the inputs are integers, or no gradient reaches them.
    """
    given: list[Tensor] = []

    def with_gradient(part: Tensor) -> Tensor:
        if not part.is_floating_point():
            return part
        given.append(part.detach().clone().requires_grad_())
        return given[-1]

    batch = experiment.batch.mapped(with_gradient, lambda part: part)
    rows = pick(experiment.run(batch)) if given else []
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(len(rows[0]) if rows else 0):
        row = torch.cat([t[number].float() for t in rows])
        total = (row * torch.randn(row.shape, generator=generator).to(row)).sum()
        try:
            slopes = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
        except RuntimeError:  # no graph, or a checkpoint that refuses it
            return None
        reach = torch.zeros(batch.rows, dtype=torch.bool)
        for slope in (slope for slope in slopes if slope is not None):
            size = slope.detach().movedim(batch.axis, 0).flatten(1).abs().amax(1).double().cpu()
            reach |= size > FAINT * size.max()
        found.append(reach)
    if sum(bool(reach.any()) for reach in found) < batch.rows:  # each sample has a row at least
        return None
    return torch.stack(found)


def mixes_samples(experiment: Experiment, base: Pass, after: Pass, number: int) -> bool:
    """Whether rows of one output of N rows depend on the first sample, other than its own row.

    Args:
        after: the pass with the first sample replaced.
        number: of the output.
    """
    before, now = [base.rows[number]], [after.rows[number]]
    shifts, uneven = moved(before, now), base.states != after.states
    if uneven or look_alike(before, now, shifts, experiment.batch.rows):
        depends = dependence(experiment, Picker([(number,)]))
        shifts = shifts if depends is None else depends[:, 0]
    return bool(shifts[1:].any())
