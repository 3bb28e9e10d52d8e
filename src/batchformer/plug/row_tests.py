"""Tests on the rows of outputs: which outputs are two streams, in which order, and what is wrong.

All tensors are (rows, features). A fault is told as the question of ``check`` that it answers with
no, and what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from batchformer.plug.observe import Pass, equal_pairs, gradients, reachable

Question = Literal["attend", "stay", "first", "equal"]


def row_orders(n: int) -> dict[str, tuple[list[int], list[int]]]:
    """Rows of the plain and of the mixed stream in every order that models are known to have."""
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
    """The order in which plain rows stay while mixed ones move, or depend on the encoder."""
    for name, (plain, mixed) in row_orders(n).items():
        own = int(shifts[plain].sum()) == 1  # of the replaced sample, wherever it stands
        if not own or any(gradients([t[plain] for t in rows], encoder)):
            continue
        if shifts[mixed][1:].any() or any(gradients([t[mixed] for t in rows], encoder)):
            return name
    return None


@dataclass(eq=False, repr=False)
class Picker:
    """The outputs to judge together.

    Attributes:
        views: of each, the numbers of one output, or of two outputs that are joined: the plain and
            the mixed stream.
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

    An output that no weight acts on, such as doubled targets, is left out where others have one.

    Args:
        mixes: whether rows of the output of this number depend on other samples than their own.
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
    """Outputs of one shape of which one stays and one mixes the samples: (plain, mixed) each."""
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
    """The id of the weight matrix that is nearest to an output."""
    return next((key for key, (p, _) in reachable([rows]).items() if p.ndim >= 2), None)


class Look(NamedTuple):
    """Outputs of a batch, and which of its samples are copies of one another, (N, N)."""

    outputs: Pass
    same: Tensor


def compare_equal(
    rows: Sequence[Tensor], same: Tensor, also: Tensor | None = None
) -> tuple[bool, bool]:
    """Whether equal samples have equal rows, and, if not, whether the rows are in another order.

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
    """Rows of nothing but zeros and ones, (N,): probabilities that are too sure to show a change.

    >>> saturated(torch.tensor([[0.0, 1.0], [0.4, 0.6]]))
    tensor([ True, False])
    """
    return ((rows == 0) | ((rows - 1).abs() < 1e-6)).all(1)


def fault_of_output(
    rows: Sequence[Tensor], shifts: Tensor, sames: Sequence[Tensor], encoder: list[nn.Parameter]
) -> tuple[Question, str] | None:
    """What is wrong with the rows of one output of two streams, (2N, features).

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
    if count and plain_moved:  # where not even the plain row moves, the output shows nothing
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
    """Whether all mixed rows are one and the same, though plain rows, if there are any, differ."""

    def spread(rows: Tensor) -> float:
        wide = rows.detach().double()
        size = max(float(wide.abs().max()), 1e-12)
        return float((wide - wide[0]).abs().max()) / size

    rounding = max((4 * torch.finfo(t.dtype).eps for t in mixed), default=0.0)
    spreads = [spread(t) for t in plain if len(t)]
    differ = not spreads or max(spreads) > 1e-3
    return differ and all(spread(t) <= rounding for t in mixed)
