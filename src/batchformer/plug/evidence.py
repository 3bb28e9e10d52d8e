"""The experiments of ``check`` in training: which rows depend on which samples and weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer
from batchformer.plug.alive import influence_of, why_gone
from batchformer.plug.dependence import dependence, look_alike, mixes_samples
from batchformer.plug.example import Batch
from batchformer.plug.groups import larger_batch, unreached
from batchformer.plug.noise import drops_everything
from batchformer.plug.observe import (
    SEEDS,
    Experiment,
    Features,
    Pass,
    equal_pairs,
    gradients,
    has_reentrant_checkpoint,
    moved,
    reachable,
    replaced,
    same_samples,
)
from batchformer.plug.row_tests import (
    Look,
    Picker,
    all_the_same,
    compare_equal,
    fault_of_output,
    find_order,
    find_views,
    row_orders,
)
from batchformer.plug.stream_weights import find_stream_specific, follow_gradients, is_followed


class Seen:
    """What the training passes showed.

    Attributes:
        experiment: the model with its noise held.
        base: the pass that the others are compared with.
        rows: rows of the output for N samples.
        doubled: there are two streams, of 2N rows or as two outputs of N rows.
        two_outputs: they are two outputs.
        pick: the outputs that were judged together.
        faults: what is wrong with one output of several, by the question that it answers.
        same_mixed: the mixed rows of different samples are all the same.
        unreached: in a larger batch, how many mixed rows do not depend on the first samples, and
            of how many samples that batch is; None if there is none.
        order: how the model orders its rows: "plain, mixed" is right; None: not known.
        used: encoders that are called, or whose weights take part in the outputs.
        met: (N,) whether a mixed row, other than the first, depends on another sample.
        replaced_all: this took more than replacing the first sample.
        plain_moved: (N,) whether a plain row moved as the first sample was replaced.
        plain_encoded: plain rows depend on the encoder's weights.
        in_encoder: the encoder's own rows moved as the first sample was replaced.
        unsteady: outputs change from pass to pass, with random numbers that cannot be seeded.
        uneven: how many random numbers a pass draws depends on the samples, and so do all rows.
        alike: samples have almost the same rows, so that replacing one shows next to nothing.
        finite: all outputs are.
        judged: the outputs have N or 2N rows, and are finite.
        influence: how far one sample can change another's loss; None if not measured.
        gone: what to say if weight decay has taken the encoder away.
        misplaced: rows of a stream are not in the order of the samples.
        equal: mixed rows of equal samples are equal; None: not known.
        own_weights: the encoder's, or, without a BatchFormer, those that act on mixed rows alone.
        reached: which of them the mixed rows have a gradient for.
        stray: mixed rows depend on weights that are not among the model's parameters.
        cut_off: a parameter that acts on mixed rows alone and has no gradient of them.
        unshared: a weight of the classifier that acts on one stream alone.
        untrained: a weight, or the backbone, that acts on mixed rows and has no gradient of them.
        plain_untrained: the same of plain rows.
        followed: layers with weights follow the encoder; if not, it may stand after the classifier.
        no_gradients: why gradients could not be computed.
        dropout: the first module that drops everything it is given, in training.
    """

    doubled: bool = False
    two_outputs: bool = False
    same_mixed: bool = False
    unreached: tuple[int, int] | None = None
    order: str | None = None
    replaced_all: bool = False
    plain_encoded: bool = False
    in_encoder: bool = False
    unsteady: bool = False
    uneven: bool = False
    alike: bool = False
    finite: bool = True
    judged: bool = True
    influence: float | None = None
    gone: str | None = None
    misplaced: bool = False
    equal: bool | None = None
    stray: bool = False
    cut_off: str | None = None
    unshared: str | None = None
    untrained: str | None = None
    plain_untrained: str | None = None
    followed: bool = True
    no_gradients: str | None = None
    dropout: str | None = None

    # Written by hand: a dataclass of so many fields is slow to import.
    def __init__(self, experiment: Experiment, base: Pass, rows: int) -> None:
        self.experiment, self.base, self.rows = experiment, base, rows
        self.used: list[BatchFormer] = []
        self.met = self.plain_moved = torch.zeros(experiment.batch.rows, dtype=torch.bool)
        self.own_weights: list[tuple[str, Tensor]] = []
        self.faults: dict[str, str] = {}
        self.pick: Picker | None = None
        self.reached: list[bool] = []

    @property
    def samples(self) -> int:
        return self.experiment.batch.rows

    def plain_rows(self, outputs: Pass) -> list[Tensor]:
        """The plain stream of each output that has two, (N, features)."""
        if self.pick is None or not self.doubled or self.order is None:
            return []
        return [t[row_orders(self.samples)[self.order][0]] for t in self.pick(outputs)]

    @property
    def control(self) -> bool:
        return bool(self.used) and all(encoder.attend == "self" for encoder in self.used)

    @property
    def attends(self) -> bool:
        """All mixed rows depend on other samples, in every output; or the control is as it is."""
        apart = self.unreached is not None or "attend" in self.faults
        return self.control or (bool(self.met[1:].all()) and not apart)


def look(experiment: Experiment, frozen: set[int]) -> Seen:
    """Run the experiments.

    Args:
        frozen: ids of the parameters that the user has frozen.
    """
    n = experiment.batch.rows
    base, larger = experiment.run(), larger_batch(experiment)
    if larger is not None:
        experiment.learn_layout(base, larger[1], larger[0].rows)
        experiment.find_rows(larger[1], larger[0].rows)
    after = experiment.run(replaced(experiment.batch, 0))
    seen = Seen(experiment, base, base.count(n))
    seen.finite = all(bool(t.detach().isfinite().all()) for t in base.rows)
    training = ((name, m) for name, m in experiment.model.named_modules() if m.training)
    seen.dropout = next((name for name, m in training if drops_everything(m)), None)
    leaves = reachable(base.outputs)
    seen.used = _used(experiment.encoders, base, leaves, frozen)
    seen.in_encoder = any(
        moved([_flat(e, old)], [_flat(e, new)])[1:].any()
        for (e, _, old), (_, _, new) in zip(base.calls, after.calls, strict=False)
        if old.shape == new.shape
    )
    pick = find_views(base, n, partial(mixes_samples, experiment, base, after))
    seen.judged = pick is not None and seen.finite
    if pick is None:
        return seen
    seen.two_outputs = pick.paired
    seen.doubled = seen.two_outputs or seen.rows == 2 * n
    encoder = [p for e in seen.used for p in e.parameters()]
    unseen = [e for e in seen.used if not any(id(p) in leaves for p in e.parameters())]
    if unseen and has_reentrant_checkpoint(base.outputs):
        seen.no_gradients, encoder = "the encoder is in a checkpoint with use_reentrant=True", []
    second: Pass | None = None
    noisy = base.noisy or after.noisy
    if seen.doubled and seen.finite and len(pick.views) > 1 and not noisy:
        batches = [experiment.batch, replaced(experiment.batch, 0), _second_replaced(experiment)]
        second = experiment.run(batches[2])
        looks = [
            Look(outputs, same_samples(batch))
            for outputs, batch in zip((base, after, second), batches, strict=True)
        ]
        pick = _without_faulty(seen, pick, looks, encoder)
    seen.pick = pick
    passes = [(base, after)]
    for draw in range(1, SEEDS) if base.noisy else ():
        again = experiment.run(draw=draw), experiment.run(replaced(experiment.batch, 0), draw=draw)
        passes.append(again)
    pairs = [(pick(before), pick(now)) for before, now in passes]
    shifts = torch.stack([moved(*pair) for pair in pairs]).any(0)
    depends: Tensor | None = None
    comparable = True  # rows of two passes
    seen.uneven = any(before.states != now.states for before, now in passes)
    seen.alike = look_alike(*pairs[0], shifts, n)
    if seen.uneven or seen.alike:
        depends = dependence(experiment, pick)
        if depends is not None:
            comparable = not seen.uneven
            shifts = shifts | depends[:, 0] if comparable else depends[:, 0]
            seen.uneven = seen.alike = False
    plain, mixed = list[int](), list(range(n))
    if seen.doubled:
        seen.order = find_order(shifts, n, pick(base), encoder)
        plain, mixed = row_orders(n)[seen.order or "plain, mixed"]
        seen.plain_moved = shifts[plain]
        seen.plain_encoded = any(gradients([t[plain] for t in pick(base)], encoder))
    seen.met = shifts[mixed]
    seen.met[0] = False  # its own row says nothing
    _compare_equal_samples(seen, pairs, plain, mixed)
    if seen.equal and seen.doubled and n > 2:
        # One pair of equal samples leaves orders open that keep the pair, such as swapped halves.
        second = second or experiment.run(_second_replaced(experiment))
        same = same_samples(_second_replaced(experiment))
        for half in (plain, mixed):
            seen.misplaced |= compare_equal([t[half] for t in pick(second)], same)[1]
    # Norms over two or three channels can make the encoder's own rows the same.
    narrow = any(all_the_same([_flat(e, out)], []) for e, _, out in base.calls)
    if not noisy and not narrow:
        seen.same_mixed = all(
            all_the_same([t[mixed] for t in pick(each)], [t[plain] for t in pick(base)])
            for each in (base, after, second)
            if each is not None
        )
    if not (seen.equal and seen.met[1:].all() and not seen.plain_moved[1:].any()):
        # Rows of equal samples that are equal have no noise of their own.
        seen.unsteady = bool(moved(pick(base), pick(experiment.run())).any())
        seen.equal = None if seen.unsteady else seen.equal
    if not seen.met[1:].all() and not seen.control and not seen.unsteady:
        if comparable:
            seen.met = seen.met | _met_otherwise(seen, after, pick, mixed)
        if depends is not None:
            others = depends[mixed].clone()
            others.fill_diagonal_(False)
            seen.met = seen.met | others.any(1)
        seen.replaced_all = True
    elif larger is not None and depends is None and not (seen.control or seen.unsteady or noisy):
        order = seen.order or "plain, mixed"
        seen.unreached = unreached(experiment, *larger, pick, order if seen.doubled else None)
    if seen.no_gradients is not None:
        return seen
    if base.calls:
        seen.influence = influence_of(base, n)
        if seen.influence is not None and not seen.control:
            seen.gone = why_gone(seen.used, seen.influence)
    try:
        apart = find_stream_specific(seen, pick, plain, mixed)
        follow_gradients(seen, pick, plain, mixed, leaves)
        if seen.doubled and not seen.unsteady and not noisy:
            _judge_further(seen, after, pick)
            seen.followed = seen.followed and is_followed(seen, pick, mixed)
            if seen.followed and seen.untrained is None and seen.plain_untrained is None:
                seen.unshared = seen.unshared or apart
    except RuntimeError as error:  # a checkpoint elsewhere in the model
        seen.no_gradients = str(error).splitlines()[0]
    return seen


def _second_replaced(experiment: Experiment) -> Batch:
    return replaced(experiment.batch, 1, source=0)


def _flat(encoder: BatchFormer, x: Tensor) -> Tensor:
    return x.movedim(encoder.batch_axis, 0).flatten(1)


def _used(
    encoders: list[BatchFormer], base: Pass, leaves: dict[int, tuple[Tensor, int]], frozen: set[int]
) -> list[BatchFormer]:
    """All but frozen ones that no pass calls: copies that a wrapper keeps aside (PEFT)."""
    called = {id(encoder) for encoder, _, _ in base.calls}
    called |= {id(e) for e in encoders if any(id(p) in leaves for p in e.parameters())}
    if not called:
        return []
    return [
        e for e in encoders if id(e) in called or not all(id(p) in frozen for p in e.parameters())
    ]


def _met_otherwise(seen: Seen, after: Pass, pick: Picker, mixed: list[int]) -> Tensor:
    """Which mixed rows depend on another sample, by every other experiment there is."""
    experiment, n = seen.experiment, seen.samples
    met = torch.zeros(n, dtype=torch.bool)
    for sample in range(1, n):
        shifts = moved(pick(seen.base), pick(experiment.run(replaced(experiment.batch, sample))))
        shifts = shifts[mixed]
        shifts[sample] = False
        met |= shifts
    if not met[1:].all() and _reads_samples(seen.base, after, n):
        # An untrained network may map all samples to almost the same features, or to huge ones
        # with which attention gives all weight to one sample.
        experiment = replace(experiment, encoders=[seen.base.calls[0][0]])
        steady = experiment.run(features="unit")
        noises: tuple[Features, ...] = ("unit_and_noise", "unit_and_loud_noise")
        for noise in noises:
            shifts = moved(pick(steady), pick(experiment.run(features=noise)))[mixed]
            shifts[0] = False
            met |= shifts
    return met


def _reads_samples(base: Pass, after: Pass, n: int) -> bool:
    """Whether the first encoder has the samples on its batch axis: the first alone may differ."""
    if not base.calls or not after.calls:
        return False
    encoder, x, _ = base.calls[0]
    if x.shape[encoder.batch_axis] != n or x.shape != after.calls[0][1].shape:
        return False
    return not moved([_flat(encoder, x)], [_flat(encoder, after.calls[0][1])])[1:].any()


def _compare_equal_samples(
    seen: Seen, pairs: list[tuple[list[Tensor], list[Tensor]]], plain: list[int], mixed: list[int]
) -> None:
    """After the replacement the first sample equals another: so must their rows."""
    batch = seen.experiment.batch
    sames = [same_samples(batch), same_samples(replaced(batch, 0))]
    copies = int(sames[0].sum()) > seen.samples
    alike = []
    for pair in pairs:
        # Different samples may have equal rows: those of a narrow layer whose units are all zero.
        also = torch.zeros_like(sames[0])
        for half in (plain, mixed) if seen.doubled else (mixed,):
            if half is plain or not copies:
                also = also | (equal_pairs([t[half] for t in pair[0]]) & ~sames[0])
            looks = [
                compare_equal([t[half] for t in rows], same, also)
                for rows, same in zip(pair, sames, strict=True)
            ]
            alike.append(all(equal for equal, _ in looks))
            seen.misplaced |= any(misplaced for _, misplaced in looks)
    # One plain row moves with the replaced sample. If it is another's, the order is wrong.
    if seen.doubled and int(seen.plain_moved.sum()) == 1 and not seen.plain_moved[0]:
        seen.misplaced = True
    if all(alike):
        seen.equal = True
    elif seen.doubled and alike[0] and not seen.misplaced and not seen.base.noisy:
        seen.equal = False


def _without_faulty(
    seen: Seen, pick: Picker, looks: list[Look], encoder: list[nn.Parameter]
) -> Picker:
    """Name what is wrong with some outputs of several, and go on with the others.

    Where something is wrong with all of them, those go on that share the fault of the first.
    """
    same = [look.same for look in looks]
    rows = [[pick.rows(look.outputs, view) for look in looks] for view in pick.views]
    found = []
    for view, each in zip(pick.views, rows, strict=True):
        shifts = moved(each[:1], each[1:2])
        fault = fault_of_output(each, shifts, same, encoder)
        alike = look_alike(each[:1], each[1:2], shifts, seen.samples)
        if fault is not None and fault[0] == "attend" and alike:
            depends = dependence(seen.experiment, Picker([view]))
            shifts = shifts if depends is None else shifts | depends[:, 0]
            fault = depends if depends is None else fault_of_output(each, shifts, same, encoder)
        found.append(fault)
    main = None if None in found else found[0] and found[0][0]
    going_on = []
    for view, fault in zip(pick.views, found, strict=True):
        question = fault and fault[0]
        if question == main:
            going_on.append(view)
        elif fault is not None:
            name = seen.base.row_names[view[-1]]
            seen.faults.setdefault(fault[0], f"outputs{name}: {fault[1]}")
    return Picker(going_on, pick.further)


def _judge_further(seen: Seen, after: Pass, pick: Picker) -> None:
    """An output of N rows beside the streams may mix samples by the encoder alone."""
    weights = [p for _, p in seen.own_weights]
    for number in pick.further:
        shifts = moved([seen.base.rows[number]], [after.rows[number]])
        name, others = f"outputs{seen.base.row_names[number]}", int(shifts[1:].sum())
        if others == 1 and not shifts[0]:
            told = f"{name}: the rows of a stream are not in the order of samples"
            seen.faults.setdefault("first", told)
        # A new pass: weights may have been moved since the first one.
        elif others and not any(gradients([seen.experiment.run().rows[number]], weights)):
            told = f"{name}: replacing one sample moves {others} of {len(shifts) - 1} others"
            seen.faults.setdefault("stay", told)
