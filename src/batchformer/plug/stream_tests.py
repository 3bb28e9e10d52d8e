"""Which rows of the outputs are the two streams, and does each have its samples in order?

A fault of one output of several is a pair: the question of ``check`` that it answers with no, and
a description.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from batchformer.nn.module import parameter_ids
from batchformer.plug.attention_tests import dependence, flat, look_alike, mixes_samples
from batchformer.plug.batches import replace_sample, same_samples
from batchformer.plug.evidence import Evidence, Picker, row_orders
from batchformer.plug.findings import EQUAL, FIRST, OWN, SIZE, STAY, STREAMS, Finding
from batchformer.plug.observe import (
    equal_pairs,
    gradients,
    has_reentrant_checkpoint,
    moved,
    reachable,
)

Question = Literal["attend", "stay", "first", "equal"]

#: Mixed rows this many times as large as fixed features fail; `docs/faq.md` says what they cost.
TOO_LARGE = 8.0

# ---- Which outputs are the streams, and in which order are their rows?


def find_views(seen: Evidence) -> Picker | None:
    """All outputs of 2N rows, or pairs of outputs of N rows, or all outputs of N rows.

    An output on which no weight acts, such as doubled targets, is left out if others have weights.
    """
    n, rows = seen.samples, seen.base.rows
    single = [i for i, part in enumerate(rows) if len(part) == n]
    doubled = [i for i, part in enumerate(rows) if len(part) == 2 * n]
    doubled = [i for i in doubled if rows[i].requires_grad] or doubled
    if doubled:
        return Picker([(i,) for i in doubled], single)
    pairs = _pairs(seen, single)
    if pairs:
        return Picker(pairs, [i for i in single if not any(i in pair for pair in pairs)])
    return Picker([(i,) for i in single]) if single else None


def _pairs(seen: Evidence, single: list[int]) -> list[tuple[int, ...]]:
    """Pairs (plain, mixed) of outputs of one shape, of which only the second mixes samples."""
    rows = seen.base.rows
    mixed = [i for i in single if mixes_samples(seen, i)] if len(single) > 1 else []
    left = [i for i in single if i not in mixed]
    found: list[tuple[int, ...]] = []
    for number in mixed:
        alike = [i for i in left if rows[i].shape == rows[number].shape]
        last = _last_matrix(rows[number])
        plain = next((i for i in alike if _last_matrix(rows[i]) == last), None)
        plain = alike[0] if plain is None and alike else plain
        if plain is not None:
            found.append((plain, number))
            left.remove(plain)
    return found


def _last_matrix(rows: Tensor) -> int | None:
    """The id of the weight matrix nearest to an output."""
    return next((key for key, (p, _) in reachable([rows]).items() if p.ndim >= 2), None)


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


def find_streams(seen: Evidence, encoder: list[nn.Parameter]) -> None:
    """Which rows of the judged outputs are plain, which are mixed, and which of them moved."""
    if seen.doubled:
        seen.order = find_order(seen.shifts, seen.samples, seen.pick(seen.base), encoder)
        seen.plain, seen.mixed = row_orders(seen.samples)[seen.order or "plain, mixed"]
        seen.plain_moved = seen.shifts[seen.plain]
        seen.plain_encoded = any(gradients(seen.plain_rows(seen.base), encoder))
    seen.attending = seen.shifts[seen.mixed]
    seen.attending[0] = False  # the row of the replaced sample itself shows nothing


# ---- Do equal samples have equal rows?


def _compare_equal(
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


def compare_equal_samples(seen: Evidence) -> None:
    """After the replacement the first sample equals another, so their rows must be equal too."""
    batch = seen.experiment.batch
    sames = [same_samples(batch), same_samples(replace_sample(batch, 0))]
    copies = int(sames[0].sum()) > seen.samples
    halves = (seen.plain, seen.mixed) if seen.doubled else (seen.mixed,)
    alike = []
    for passes in seen.passes:
        pair = [seen.pick(outputs) for outputs in passes]
        # Different samples may have equal rows, if all units of a narrow layer are zero.
        also = torch.zeros_like(sames[0])
        for half in halves:
            if half is seen.plain or not copies:
                also = also | (equal_pairs([t[half] for t in pair[0]]) & ~sames[0])
            looks = [
                _compare_equal([t[half] for t in rows], same, also)
                for rows, same in zip(pair, sames, strict=True)
            ]
            alike.append(all(equal for equal, _ in looks))
            seen.misplaced |= any(misplaced for _, misplaced in looks)
    # Only the plain row of the replaced sample moves. If it is not the first, the order is wrong.
    if seen.doubled and int(seen.plain_moved.sum()) == 1 and not seen.plain_moved[0]:
        seen.misplaced = True
    if all(alike):
        seen.equal = True
    elif seen.doubled and alike[0] and not seen.misplaced and not seen.base.noisy:
        seen.equal = False
    if seen.equal and seen.doubled and seen.samples > 2:
        # One pair of equal samples does not exclude orders that keep the pair together.
        rows, same = seen.pick(seen.second()), same_samples(replace_sample(batch, 1, source=0))
        for half in halves:
            seen.misplaced |= _compare_equal([t[half] for t in rows], same)[1]


def find_same_mixed(seen: Evidence) -> None:
    """Find whether the mixed rows of different samples are all equal: pooled over the batch."""
    # Norms over two or three channels can make the encoder's own rows equal.
    narrow = any(_all_the_same([flat(e, out)], []) for e, _, out in seen.base.calls)
    if not seen.noisy and not narrow:
        plain = seen.plain_rows(seen.base)
        seen.same_mixed = all(_all_the_same(seen.mixed_rows(p), plain) for p in seen.replaced)


def _all_the_same(mixed: Sequence[Tensor], plain: Sequence[Tensor]) -> bool:
    """Whether all mixed rows are equal although the plain rows, if there are any, differ."""

    def spread(rows: Tensor) -> float:
        wide = rows.detach().double()
        size = max(float(wide.abs().max()), 1e-12)
        return float((wide - wide[0]).abs().max()) / size

    rounding = max((4 * torch.finfo(t.dtype).eps for t in mixed), default=0.0)
    spreads = [spread(t) for t in plain if len(t)]
    differ = not spreads or max(spreads) > 1e-3
    return differ and all(spread(t) <= rounding for t in mixed)


# ---- Faults of one output of several.


def leave_out_faulty(seen: Evidence, encoder: list[nn.Parameter]) -> None:
    """Note what is wrong with some outputs of several, and judge the others.

    If something is wrong with all of them, judge those that share the fault of the first.
    """
    batch = seen.experiment.batch
    batches = (batch, replace_sample(batch, 0), replace_sample(batch, 1, source=0))
    same = [same_samples(each) for each in batches]
    passes = (seen.base, seen.after, seen.second())
    found = []
    for view in seen.pick.views:
        rows = [Picker.rows(outputs, view) for outputs in passes]
        shifts = moved(rows[:1], rows[1:2])
        fault = _fault_of_output(rows, shifts, same, encoder)
        alike = look_alike(rows[:1], rows[1:2], shifts, seen.samples)
        if fault is not None and fault[0] == "attend" and alike:
            depends = dependence(seen.experiment, Picker([view]))
            fault = None
            if depends is not None:
                fault = _fault_of_output(rows, shifts | depends[:, 0], same, encoder)
        found.append(fault)
    main = None if None in found else found[0] and found[0][0]
    remaining = []
    for view, fault in zip(seen.pick.views, found, strict=True):
        question = fault and fault[0]
        if question == main:
            remaining.append(view)
        elif fault is not None:
            name = seen.base.row_names[view[-1]]
            seen.faults.setdefault(fault[0], f"outputs{name}: {fault[1]}")
    seen.pick = Picker(remaining, seen.pick.further)


def _saturated(rows: Tensor) -> Tensor:
    """Which rows have only zeros and ones, (N,): saturated probabilities, which show no change.

    >>> _saturated(torch.tensor([[0.0, 1.0], [0.4, 0.6]]))
    tensor([ True, False])
    """
    return ((rows == 0) | ((rows - 1).abs() < 1e-6)).all(1)


def _fault_of_output(
    rows: Sequence[Tensor], shifts: Tensor, sames: Sequence[Tensor], encoder: list[nn.Parameter]
) -> tuple[Question, str] | None:
    """What is wrong with the rows of one output of two streams, (2N, features); None if nothing.

    Args:
        rows: its rows for the batch, with the first sample replaced, and with the second.
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
    still = ~shifts[mixed] & ~_saturated(rows[0][mixed].detach().cpu())
    count = int(still[1:].sum())
    if count and plain_moved:  # if not even the plain row moves, the output shows nothing
        return "attend", f"{n - 1 - count} of {n - 1} mixed rows depend on another sample"
    for batch, same in zip(rows, sames, strict=True):
        for half in (plain, mixed):
            alike, misplaced = _compare_equal([batch[half]], same)
            if misplaced:
                return "first", "the rows of a stream are not in the order of samples"
            if not alike and half is mixed:
                return "equal", "their mixed rows differ"
    return None


def judge_further(seen: Evidence) -> None:
    """Find faults of outputs of N rows beside the streams: only the encoder may mix samples."""
    weights = [p for _, p in seen.own_weights]
    for number in seen.pick.further:
        shifts = moved([seen.base.rows[number]], [seen.after.rows[number]])
        name, others = f"outputs{seen.base.row_names[number]}", int(shifts[1:].sum())
        if others == 1 and not shifts[0]:
            text = f"{name}: the rows of a stream are not in the order of samples"
            seen.faults.setdefault("first", text)
        # A new pass: weights may have been moved since the first one.
        elif others and not any(gradients([seen.experiment.run().rows[number]], weights)):
            text = f"{name}: replacing one sample moves {others} of {len(shifts) - 1} others"
            seen.faults.setdefault("stay", text)


# ---- What all of these say.


def about_streams(seen: Evidence, mixed_only: bool) -> Finding:
    n = seen.samples
    one = mixed_only and seen.rows == n
    text = f"{seen.rows} rows for {n} samples" + (" (mixed_only, as asked)" if one else "")
    if seen.two_outputs:
        text = f"two outputs of {n} rows for {n} samples"
    remedy = "train one classifier on plain AND mixed rows: attach(model) or two_streams(x, module)"
    return Finding(STREAMS, seen.doubled or one, text, remedy)


def about_rows(seen: Evidence) -> Iterator[Finding]:
    """Whether plain rows stay and come first, and mixed rows are those of their samples."""
    if not seen.judged or not seen.doubled:
        return
    yield _do_plain_rows_stay(seen)
    yield _are_plain_rows_first(seen)
    if seen.same_mixed and seen.attending.any():  # pooled; if nothing attends, that was reported
        remedy = (
            "the mixed row of a sample must depend on its own features: do not pool the encoder's "
            "rows over the batch"
        )
        yield Finding(OWN, False, "all mixed rows are the same", remedy)
    remedy = (
        "a batch has no order: remove the positional encoding, causal mask or recurrence over "
        "samples"
    )
    if seen.equal is None:
        reason = "their plain rows differ too"
        if seen.misplaced:
            reason = "the rows of a stream are not in the order of samples"
        elif seen.noisy or seen.unsteady:
            reason = "each row draws its own random numbers"
        yield Finding(EQUAL, None, reason)
    elif seen.equal and "equal" in seen.faults:
        yield Finding(EQUAL, False, seen.faults["equal"], remedy)
    else:
        text = "their mixed rows are equal" if seen.equal else "their mixed rows differ"
        yield Finding(EQUAL, seen.equal, text, remedy)


def about_size(seen: Evidence) -> Iterator[Finding]:
    """A failure if mixed rows are much larger than features that training cannot change.

    The encoder ends with a normalisation. A trained network adapts to it; fixed features, such as
    embeddings of length one, do not, and the shared classifier then fits the mixed rows.
    """
    trained = parameter_ids([seen.experiment.model]) - seen.frozen
    for _, plain, mixed in seen.base.calls:
        sizes = [float(t.detach().double().square().mean().sqrt()) for t in (plain, mixed)]
        hidden = has_reentrant_checkpoint([plain])
        fixed = not hidden and trained.isdisjoint(reachable([plain]))
        if fixed and 0 < TOO_LARGE * sizes[0] < sizes[1]:
            text = (
                f"mixed rows are {sizes[1] / sizes[0]:.0f} times as large as the features, which "
                "are fixed: nothing before the encoder is trained"
            )
            remedy = (
                f"attach(model, scale={sizes[0]:.2g}), the root mean square of these features, "
                "lets mixed rows start with their size"
            )
            yield Finding(SIZE, False, text, remedy)
            return


def _do_plain_rows_stay(seen: Evidence) -> Finding:
    others = 0 if seen.misplaced else int(seen.plain_moved[1:].sum())
    text = f"replacing one sample moves {others} of {seen.samples - 1} others in the plain stream"
    remedy = (
        "the model mixes samples elsewhere (not in BatchNorm, which is held fixed here): look for "
        "batch statistics, mixup inside the model, or attention over the wrong axis"
    )
    stays = not others and not seen.plain_encoded
    if seen.plain_encoded:
        text = "the plain rows depend on the encoder too"
        remedy = (
            "half of the rows must be the features as they were: x = two_streams(x, module), and "
            "nothing after it may mix rows (mixup, batch statistics, another encoder)"
        )
    if stays and "stay" in seen.faults:
        stays, text = False, seen.faults["stay"]
    if (seen.unsteady or seen.uneven) and not stays:
        return Finding(STAY, None, seen.noise)
    return Finding(STAY, stays, text, remedy)


def _are_plain_rows_first(seen: Evidence) -> Finding:
    remedy = "targets are doubled as plain then mixed, each in the order of the samples"
    if seen.misplaced:
        return Finding(FIRST, False, "the rows of a stream are not in the order of samples", remedy)
    if "first" in seen.faults and seen.order in (None, "plain, mixed"):
        return Finding(FIRST, False, seen.faults["first"], remedy)
    if seen.two_outputs:
        return Finding(FIRST, True, "each stream is an output of its own")
    if seen.order is None:
        return Finding(FIRST, None, "the two streams cannot be told apart")
    return Finding(FIRST, seen.order == "plain, mixed", seen.order, remedy)
