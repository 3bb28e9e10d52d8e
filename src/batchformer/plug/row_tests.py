"""Tests on the rows of outputs: which are two streams, in which order, and what depends on what.

All rows are (rows, features) tensors. A fault is given as the question of ``check`` that it answers
with no, and a description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from batchformer.nn.streams import leaves
from batchformer.plug.batches import PROBE, repeated_index, source_of
from batchformer.plug.observe import Experiment, Pass, equal_pairs, gradients, moved, reachable

Question = Literal["attend", "stay", "first", "equal"]


def row_orders(n: int) -> dict[str, tuple[list[int], list[int]]]:
    """Rows of the plain and of the mixed stream, in every order that models are known to use."""
    first, second = list(range(n)), list(range(n, 2 * n))
    even, odd = list(range(0, 2 * n, 2)), list(range(1, 2 * n, 2))
    return {
        "plain, mixed": (first, second),
        "mixed, plain": (second, first),
        "plain and mixed in turn": (even, odd),
        "mixed and plain in turn": (odd, even),
    }


def find_order(
    shifts: Tensor, n: int, rows: list[Tensor], encoder: list[nn.Parameter]
) -> str | None:
    """The order in which plain rows stay, and mixed rows move or depend on the encoder."""
    for name, (plain, mixed) in row_orders(n).items():
        own = int(shifts[plain].sum()) == 1  # the row of the replaced sample, at any place
        if not own or any(gradients([t[plain] for t in rows], encoder)):
            continue
        if shifts[mixed][1:].any() or any(gradients([t[mixed] for t in rows], encoder)):
            return name
    return None


@dataclass(eq=False, repr=False)
class Picker:
    """The outputs to judge together.

    Attributes:
        views: for each, the number of one output, or the numbers of two outputs that are joined:
            the plain and the mixed stream.
        further: numbers of the other outputs that have one row for each sample.
    """

    views: list[tuple[int, ...]]
    further: list[int] = field(default_factory=list)

    @property
    def paired(self) -> bool:
        return len(self.views[0]) == 2

    def __call__(self, seen: Pass) -> list[Tensor]:
        return [self.rows(seen, view) for view in self.views]

    @staticmethod
    def rows(seen: Pass, view: tuple[int, ...]) -> Tensor:
        parts = [seen.rows[number] for number in view]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def find_views(base: Pass, n: int, mixes: Callable[[int], bool]) -> Picker | None:
    """All outputs of 2N rows, or pairs of outputs of N rows, or all outputs of N rows.

    An output on which no weight acts, such as doubled targets, is left out if others have one.

    Args:
        mixes: whether rows of the output with this number depend on other samples.
    """
    counts = [len(rows) for rows in base.rows]
    single = [i for i, count in enumerate(counts) if count == n]
    doubled = [i for i, count in enumerate(counts) if count == 2 * n]
    doubled = [i for i in doubled if base.rows[i].requires_grad] or doubled
    if doubled:
        return Picker([(i,) for i in doubled], single)
    pairs = _pairs(base, single, mixes)
    if pairs:
        return Picker(pairs, [i for i in single if not any(i in pair for pair in pairs)])
    return Picker([(i,) for i in single]) if single else None


def _pairs(base: Pass, single: list[int], mixes: Callable[[int], bool]) -> list[tuple[int, ...]]:
    """Pairs (plain, mixed) of outputs of one shape: one stays, and one mixes the samples."""
    mixed = [i for i in single if mixes(i)] if len(single) > 1 else []
    left = [i for i in single if i not in mixed]
    found: list[tuple[int, ...]] = []
    for number in mixed:
        alike = [i for i in left if base.rows[i].shape == base.rows[number].shape]
        last = _last_matrix(base.rows[number])
        plain = next((i for i in alike if _last_matrix(base.rows[i]) == last), None)
        plain = alike[0] if plain is None and alike else plain
        if plain is not None:
            found.append((plain, number))
            left.remove(plain)
    return found


def _last_matrix(rows: Tensor) -> int | None:
    """The id of the weight matrix nearest to an output."""
    return next((key for key, (p, _) in reachable([rows]).items() if p.ndim >= 2), None)


class Observation(NamedTuple):
    """Outputs of a batch, and which of its samples are copies of one another, (N, N)."""

    outputs: Pass
    same: Tensor


def compare_equal(
    rows: Sequence[Tensor], same: Tensor, also: Tensor | None = None
) -> tuple[bool, bool]:
    """Whether equal samples have equal rows, and if not, whether the rows are in another order.

    Args:
        rows: (N, features) each, of one stream.
        same: which samples are copies of one another, (N, N).
        also: rows that are equal although their samples are not, (N, N).
    """
    now = equal_pairs(rows)
    missing = bool((same & ~now).any())
    surplus = now & ~same if also is None else now & ~same & ~also
    return not missing, missing and bool(surplus.any())


def saturated(rows: Tensor) -> Tensor:
    """Which rows have only zeros and ones, (N,): saturated probabilities, which show no change.

    >>> saturated(torch.tensor([[0.0, 1.0], [0.4, 0.6]]))
    tensor([ True, False])
    """
    return ((rows == 0) | ((rows - 1).abs() < 1e-6)).all(1)


def fault_of_output(
    rows: Sequence[Tensor], shifts: Tensor, sames: Sequence[Tensor], encoder: list[nn.Parameter]
) -> tuple[Question, str] | None:
    """What is wrong with the rows of one output of two streams, (2N, features); None if nothing.

    Args:
        rows: of the batch, with the first sample replaced, and with the second replaced.
        shifts: which rows depend on the first sample, (2N,).
        sames: which samples of each batch are copies of one another.
    """
    n = len(rows[0]) // 2
    order = find_order(shifts, n, [rows[0]], encoder)
    plain, mixed = row_orders(n)[order or "plain, mixed"]
    if order not in (None, "plain, mixed"):
        return "first", str(order)
    plain_moved = int(shifts[plain].sum())
    if order is None and plain_moved > 1:
        count = int(shifts[plain][1:].sum())
        return "stay", f"replacing one sample moves {count} of {n - 1} others in the plain stream"
    if plain_moved == 1 and not shifts[plain][0]:
        return "first", "the rows of a stream are not in the order of samples"
    still = ~shifts[mixed] & ~saturated(rows[0][mixed].detach().cpu())
    count = int(still[1:].sum())
    if count and plain_moved:  # if not even the plain row moves, the output shows nothing
        return "attend", f"{n - 1 - count} of {n - 1} mixed rows depend on another sample"
    for batch, same in zip(rows, sames, strict=True):
        for half in (plain, mixed):
            alike, misplaced = compare_equal([batch[half]], same)
            if misplaced:
                return "first", "the rows of a stream are not in the order of samples"
            if not alike and half is mixed:
                return "equal", "their mixed rows differ"
    return None


def all_the_same(mixed: Sequence[Tensor], plain: Sequence[Tensor]) -> bool:
    """Whether all mixed rows are equal although the plain rows, if there are any, differ."""

    def spread(rows: Tensor) -> float:
        wide = rows.detach().double()
        size = max(float(wide.abs().max()), 1e-12)
        return float((wide - wide[0]).abs().max()) / size

    rounding = max((4 * torch.finfo(t.dtype).eps for t in mixed), default=0.0)
    spreads = [spread(t) for t in plain if len(t)]
    differ = not spreads or max(spreads) > 1e-3
    return differ and all(spread(t) <= rounding for t in mixed)


# ---- Dependence by gradients, for models in which replacing a sample shows nothing.

#: A gradient below this, relative to the largest of the same row, counts as none.
FAINT = 1e-5


def look_alike(
    before: Sequence[Tensor], after: Sequence[Tensor], shifts: Tensor, samples: int
) -> bool:
    """Whether replacing a sample changes next to nothing in the outputs.

    In most networks the rows of the replaced sample itself, one in each stream, clearly move.

    Args:
        before: the outputs, N or 2N rows each.
        after: the same with one sample replaced.
        shifts: which rows moved by more than rounding, (rows,).
    """
    streams = len(shifts) // samples
    clearly = int(moved(before, after, tolerance=1e-3).sum())
    return clearly < streams and int(shifts.sum()) < samples + streams - 1


def dependence(experiment: Experiment, pick: Picker) -> Tensor | None:
    """Which rows depend on which samples, by gradients, (rows, N).

    A gradient needs no second pass for comparison, so noise does not matter, nor do differences
    that are lost in rounding. None if the inputs are integers, or get no gradient.
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
    """Whether rows of one output of N rows, other than the first, depend on the first sample.

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


# ---- Does attention reach the whole batch? A batch larger than small groups of samples.

#: Samples of the larger batch: the first size that takes next to no time.
MANY, LARGER = (64, 32), 8


def larger_batch(experiment: Experiment) -> tuple[list[int], Pass] | None:
    """A batch with more samples than attention in groups would reach, and its outputs.

    The batch is given by the numbers of its samples. None if the model accepts no larger batch.
    """
    rows = next((rows for rows in MANY if _is_cheap(experiment, rows)), LARGER)
    index = repeated_index(experiment.batch.rows, rows)
    try:
        return index, experiment.run_again(index, grad=False)
    except Exception:  # it accepts no more rows
        return None


def _is_cheap(experiment: Experiment, rows: int) -> bool:
    """Whether the model and its inputs are small, or the backbone need not be run again."""
    batch, replay = experiment.batch, experiment.replay
    if replay is not None and replay.share > 0.7:
        return rows * replay.width <= 2**23
    inputs = [part for _, part in leaves((batch.args, batch.kwargs)) if isinstance(part, Tensor)]
    size = sum(part.numel() for part in inputs) // batch.rows
    return size <= 2**14 and sum(p.numel() for p in experiment.model.parameters()) <= 2**20


def unreached(
    experiment: Experiment, larger: list[int], before: Pass, pick: Picker, order: str | None
) -> tuple[int, int] | None:
    """How many mixed rows of a larger batch do not depend on the first sample, and its size.

    A row may depend on it and yet not move, if attention gives all weight to a few samples. So we
    find the group of such a row, that is, the rows that move with its own sample, and replace all
    samples outside the group. If the row does not move even then, groups are separate.

    Args:
        larger: the larger batch, by the numbers of its samples.
        before: the outputs for the larger batch.
        order: of the rows; None if all rows are mixed.
    """
    n = len(larger)
    mixed = list(range(n)) if order is None else row_orders(n)[order][1]
    if any(len(rows) <= mixed[-1] for rows in pick(before)):
        return None

    def moves(index: list[int]) -> Tensor:
        after = experiment.run_again([larger[i] for i in index], grad=False)
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
