"""Do samples attend to each other? The experiments that show it, and what ``check`` says of it.

One of a few samples is replaced, and the rows of the outputs show which samples depend on it. If
they show nothing, other samples are replaced, other features are given to the encoder, or gradients
are followed. If they show something, a larger batch and a later training step are tried too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer
from batchformer.nn.streams import leaves
from batchformer.plug.batches import FEW, repeated_index, replace_sample, replaced_index, source_of
from batchformer.plug.evidence import NEGLIGIBLE, Evidence, Picker, row_orders
from batchformer.plug.findings import ATTEND, CONTROL, Finding
from batchformer.plug.insertion import WithBatchFormer
from batchformer.plug.noise import fixed_noise
from batchformer.plug.observe import SEEDS, STEPS, Experiment, Features, Pass, effect, moved
from batchformer.plug.place_tests import left_out
from batchformer.torch_private import gradients_of

# ---- One sample is replaced.


def observe_shifts(seen: Evidence) -> None:
    """Find which rows depend on the first sample: those that move when it is replaced.

    If the model draws random numbers, several seeds are tried. If passes cannot be compared, or
    samples look alike, gradients are followed.

    Raises:
        ValueError: the shape of the outputs depends on the samples.
    """
    experiment, pick = seen.experiment, seen.pick
    first_replaced = replace_sample(experiment.batch, 0)
    seen.passes = [(seen.base, seen.after)]
    for draw in range(1, SEEDS) if seen.base.noisy else ():
        before = experiment.run(draw=draw)
        if _signature(before) != _signature(seen.base):
            seen.later = "random steps skip the encoder, or give outputs of other shapes"
        else:
            seen.passes.append((before, experiment.run(first_replaced, draw=draw)))
    pairs = [(pick(before), pick(now)) for before, now in seen.passes]
    if any(a.shape != b.shape for pair in pairs for a, b in zip(*pair, strict=True)):
        raise ValueError(
            "check(): the outputs have another shape once a sample is replaced, so passes cannot "
            "be compared. If they are as long as the longest sample, pass samples of equal lengths."
        )
    seen.shifts = torch.stack([moved(*pair) for pair in pairs]).any(0)
    seen.uneven = any(before.states != now.states for before, now in seen.passes)
    seen.alike = look_alike(*pairs[0], seen.shifts, seen.samples)
    if seen.uneven or seen.alike:
        seen.depends = dependence(experiment, pick)
        if seen.depends is not None:
            seen.comparable = not seen.uneven
            by_gradient = seen.depends[:, 0]
            seen.shifts = seen.shifts | by_gradient if seen.comparable else by_gradient
            seen.uneven = seen.alike = False


def _signature(found: Pass) -> tuple[Any, ...]:
    """What all training steps have in common: the shapes of the outputs, the encoders called."""
    return [t.shape for t in found.rows], [encoder for encoder, _, _ in found.calls]


def look_alike(before: list[Tensor], after: list[Tensor], shifts: Tensor, samples: int) -> bool:
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


#: A gradient below this, relative to the largest of the same row, counts as none.
FAINT = 1e-5


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
        total = (row * fixed_noise(row, generator)).sum()
        try:
            slopes = gradients_of(total, given)
        except RuntimeError:  # no graph, or a checkpoint that refuses it
            return None
        reach = torch.zeros(batch.rows, dtype=torch.bool, device="cpu")
        for slope in (slope for slope in slopes if slope is not None):
            size = slope.detach().movedim(batch.axis, 0).flatten(1).abs().amax(1).double().cpu()
            reach |= size > FAINT * size.max()
        found.append(reach)
    if sum(bool(reach.any()) for reach in found) < batch.rows:  # each sample has at least one row
        return None
    return torch.stack(found)


def mixes_samples(seen: Evidence, number: int) -> bool:
    """Whether rows of this output of N rows, other than the first, depend on the first sample."""
    before, now = [seen.base.rows[number]], [seen.after.rows[number]]
    shifts, uneven = moved(before, now), seen.base.states != seen.after.states
    if uneven or look_alike(before, now, shifts, seen.samples):
        depends = dependence(seen.experiment, Picker([(number,)]))
        shifts = shifts if depends is None else depends[:, 0]
    return bool(shifts[1:].any())


def moves_encoder_rows(seen: Evidence) -> bool:
    """Whether the encoder's own rows, other than the first, move with the first sample."""
    return any(
        moved([flat(e, old)], [flat(e, new)])[1:].any()
        for (e, _, old), (_, _, new) in zip(seen.base.calls, seen.after.calls, strict=False)
        if old.shape == new.shape
    )


def flat(encoder: BatchFormer, x: Tensor) -> Tensor:
    """What an encoder reads or returns, as (rows, features)."""
    return x.movedim(encoder.batch_axis, 0).flatten(1)


def add_effect(seen: Evidence, before: Pass, after: Pass, sample: int = 0) -> None:
    """Keep the largest effect of all experiments."""
    found = (seen.effect, effect(seen.mixed_rows(before), seen.mixed_rows(after), sample))
    seen.effect = max((size for size in found if size is not None), default=None)


# ---- Another sample is replaced, or the encoder reads other features.


def look_elsewhere(seen: Evidence) -> None:
    """Find by all other experiments which mixed rows depend on another sample."""
    if seen.comparable:
        seen.attending = seen.attending | _attending_otherwise(seen)
    if seen.depends is not None:
        others = seen.depends[seen.mixed].clone()
        others.fill_diagonal_(False)
        seen.attending = seen.attending | others.any(1)
    seen.replaced_all = True


def _attending_otherwise(seen: Evidence) -> Tensor:
    experiment, n = seen.experiment, seen.samples
    found = torch.zeros(n, dtype=torch.bool, device="cpu")

    def compare(before: Pass, after: Pass, sample: int) -> None:
        shifts = seen.moved(before, after)[seen.mixed]
        shifts[sample] = False
        found.logical_or_(shifts)
        add_effect(seen, before, after, sample)

    for sample in range(1, n):
        compare(seen.base, experiment.run(replace_sample(experiment.batch, sample)), sample)
    if not found[1:].all() and _reads_samples(seen):
        # An untrained network may map all samples to almost the same features, or to huge ones,
        # for which attention gives all weight to one sample.
        experiment = replace(experiment, encoders=[seen.base.calls[0][0]])
        steady = experiment.run(features="unit")
        noises: tuple[Features, ...] = ("unit_and_noise", "unit_and_loud_noise")
        for noise in noises:
            compare(steady, experiment.run(features=noise), 0)
    return found


def _reads_samples(seen: Evidence) -> bool:
    """Whether the first encoder's batch axis has the samples: only the replaced one differs."""
    if not seen.base.calls or not seen.after.calls:
        return False
    (encoder, x, _), (_, now, _) = seen.base.calls[0], seen.after.calls[0]
    if not (x - x.select(encoder.batch_axis, 0).unsqueeze(encoder.batch_axis)).any():
        return False  # all samples arrive with the same features
    if x.shape[encoder.batch_axis] != seen.samples or x.shape != now.shape:
        return False
    return not moved([flat(encoder, x)], [flat(encoder, now)])[1:].any()


# ---- Does attention reach the whole batch? A batch larger than small groups of samples.

#: Samples of the larger batch: the first of ``MANY`` that takes next to no time, else ``LARGER``.
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


def unreached_rows(seen: Evidence, larger: list[int], before: Pass) -> str | None:
    """What is wrong if mixed rows of a larger batch do not depend on the first sample.

    A row may depend on it and yet not move, if attention gives all weight to a few samples. So we
    find the group of such a row, that is, the rows that move with its own sample, and replace all
    samples outside the group. If the row does not move even then, groups are separate.

    Args:
        larger: the larger batch, by the numbers of its samples.
        before: the outputs for the larger batch.
    """
    n = len(larger)
    mixed = row_orders(n)[seen.order or "plain, mixed"][1] if seen.doubled else list(range(n))
    if any(len(rows) <= mixed[-1] for rows in seen.pick(before)):
        return None

    def moves(index: list[int]) -> Tensor:
        after = seen.experiment.run_again([larger[i] for i in index], grad=False)
        return seen.moved(before, after)[mixed]

    rows, other = list(range(n)), source_of(0, FEW)
    reached = moves([other, *rows[1:]])
    reached[0] = True
    if reached.all():
        return None
    row = int((~reached).nonzero()[-1])
    group = moves([*rows[:row], other if row % FEW == 0 else 0, *rows[row + 1 :]])
    group[row] = True
    if (group & reached).any() or moves([i if group[i] else row for i in rows])[row]:
        return None
    return f"{int((~reached).sum())} of {n} mixed rows do not depend on the first sample"


# ---- A later training step, and a pass without one place.


def look_later(seen: Evidence) -> None:
    """Whether the model mixes samples in a later training step too, if steps are not all alike."""
    experiment, n = seen.experiment, seen.samples
    same, shapes, steps = list(range(n)), [t.shape for t in seen.base.rows], STEPS

    def later(index: list[int], steps: int) -> Pass:
        again = experiment.run_again(same)
        seen.unsteady |= [t.shape for t in again.rows] != shapes
        seen.unsteady = seen.unsteady or bool(seen.moved(seen.base, again).any())
        return experiment.run_again(index, later=steps)

    try:
        then = later(same, steps)
    except Exception:  # something else is counted too, such as a place in a queue
        steps = 1
        then = later(same, steps)
    if seen.unsteady:
        return
    if [t.shape for t in then.rows] != shapes:
        seen.later = "in a later training step the outputs have other shapes"
    elif seen.moved(seen.base, then).any():
        shifts = seen.moved(then, later(replaced_index(n, 0), steps))[seen.mixed]
        if seen.attending.any() and not shifts[1:].any():
            seen.later = "in a later training step no mixed row depends on another sample"


def look_at_places(seen: Evidence, places: dict[str, nn.Module]) -> None:
    """If there are several places, find one without which the mixed rows hardly change."""
    before = [t.detach().double() for t in seen.mixed_rows(seen.base)]
    for name, module in places.items() if len(places) > 1 else ():
        with left_out(module):
            again = seen.experiment.run_again(list(range(seen.samples)))
        pairs = zip(before, (t.detach().double() for t in seen.mixed_rows(again)), strict=True)
        size = max(
            float((a - b).norm() / (a - a.mean(0)).norm().clamp(min=1e-12)) for a, b in pairs
        )
        if 0 < size < NEGLIGIBLE:  # at zero, it acts on another output or gets no gradient
            seen.idle = f"without {name} the mixed rows change by {size:.1g} of their spread"


# ---- What all of these say.


def about_attention(seen: Evidence) -> Finding:
    if not seen.finite:
        remedy = "find the NaN or the infinity first: in the weights, the batch or the layers"
        return Finding(ATTEND, False, "the outputs are not finite", remedy)
    if not seen.judged:
        return Finding(ATTEND, None, "the rows are not those of the samples")
    passed, text, remedy = _do_samples_attend(seen)
    if (seen.unsteady and passed and not seen.control) or seen.uneven:
        return Finding(ATTEND, None, seen.noise)
    if seen.alike and not passed and seen.dropout is None:
        text = "all samples have almost the same outputs (a deep, untrained network?)"
        return Finding(ATTEND, None, text)
    if seen.control:
        text = f"{CONTROL} (attend='self', the control): {text}"
    return Finding(ATTEND, passed, text, remedy)


def _do_samples_attend(seen: Evidence) -> tuple[bool | None, str, str]:
    """The answer, what was seen, and the remedy, as if no noise had disturbed the experiments."""
    count, others = int(seen.attending[1:].sum()), seen.samples - 1
    text = f"replacing one sample moves {count} of {others} others in the mixed stream"
    if seen.replaced_all:
        text = f"{count} of {others} mixed rows depend on another sample"
    remedy = (
        "attention runs over an axis without the samples; the sequence axis must be the batch "
        "(nn.TransformerEncoderLayer: batch_first=False and x.unsqueeze(1))"
    )
    if seen.in_encoder:
        remedy = (
            "the encoder mixes the samples, but its rows do not all reach the outputs: "
            "x = two_streams(x, module), and the classifier reads x"
        )
    if seen.dropout is not None:
        remedy = f"{seen.dropout} has a dropout of 1, so nothing passes it: choose less, e.g. 0.5"
    remedy = seen.decayed or remedy
    if count != (0 if seen.control else others):
        return False, text, remedy
    if seen.unreached is not None:
        remedy = (
            "every sample must attend to the whole batch: call the encoder once, with all rows, "
            "not with groups of them, for batches of any size"
        )
        return False, seen.unreached, remedy
    if "attend" in seen.faults:
        return False, seen.faults["attend"], remedy
    if seen.idle is not None:
        remedy = (
            "at every place attention must run over all samples (nn.TransformerEncoderLayer: "
            "batch_first=False and x.unsqueeze(1)), without a mask that keeps them apart"
        )
        return False, seen.idle, remedy
    if seen.negligible and seen.decayed is None:
        text = f"a sample moves other mixed rows by {seen.effect:.1g} of what it moves its own"
        if any(isinstance(module, WithBatchFormer) for module in seen.experiment.model.modules()):
            # attach adds no constant: the network itself gives the place little weight.
            return None, f"{text}: paths around the place outweigh it in this network", ""
        remedy = (
            "mixed rows are hardly mixed: leave out the small constant that the encoder's rows are "
            "multiplied by, x = two_streams(x, module)"
        )
        return False, text, remedy
    if seen.later is not None:
        remedy = "mix the samples in every training step: no counter or flag may switch it off"
        return False, seen.later, remedy
    return True, text, remedy
