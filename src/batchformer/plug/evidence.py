"""The experiments of ``check`` in training: which rows depend on which samples and weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer
from batchformer.plug.alive import decay_warning, influence_of
from batchformer.plug.batches import replace_sample, replaced_index, same_samples
from batchformer.plug.noise import drops_everything
from batchformer.plug.observe import (
    SEEDS,
    STEPS,
    Experiment,
    Features,
    Pass,
    effect,
    equal_pairs,
    gradients,
    has_reentrant_checkpoint,
    moved,
    reachable,
)
from batchformer.plug.place_tests import (
    Attention,
    idle_place,
    left_out,
    place_in_groups,
    places_of,
    record_attention,
)
from batchformer.plug.row_tests import (
    Observation,
    Picker,
    all_the_same,
    compare_equal,
    dependence,
    fault_of_output,
    find_order,
    find_views,
    larger_batch,
    look_alike,
    mixes_samples,
    row_orders,
    unreached,
)
from batchformer.plug.stream_weights import find_stream_specific, follow_gradients, is_followed

#: An effect below this is none. In new encoders it is 0.03 to 1.
NEGLIGIBLE = 1e-3


class Evidence:
    """What the training passes showed.

    Attributes:
        experiment: the model with its noise fixed.
        base: the pass that the others are compared with.
        rows: rows of the output for N samples.
        doubled: there are two streams: an output of 2N rows, or two outputs of N rows.
        two_outputs: the streams are two outputs.
        pick: the outputs that are judged together.
        faults: what is wrong with one output of several, by the question that it answers with no.
        same_mixed: the mixed rows of different samples are all equal.
        unreached: in a larger batch, how many mixed rows do not depend on the first sample, and
            the size of that batch; None if all do.
        order: how the model orders its rows: "plain, mixed" is right; None is not known.
        used: encoders that are called, or whose weights take part in the outputs.
        attending: (N,) whether a mixed row, other than the first, depends on another sample.
        replaced_all: to see that, more than the first sample was replaced.
        effect: how far a replaced sample moves other mixed rows, relative to its own; None if not
            measured.
        idle: the place where no sample attends to another, or only to some, if there is one.
        later: what is wrong in a later training step, if it is another than now.
        plain_moved: (N,) whether a plain row moved when the first sample was replaced.
        plain_encoded: plain rows depend on the encoder's weights.
        in_encoder: the encoder's own rows moved when the first sample was replaced.
        unsteady: outputs change from pass to pass, with random numbers that cannot be seeded.
        uneven: the number of random draws in a pass depends on the samples, and so do all rows.
        alike: samples have almost the same rows, so replacing one shows next to nothing.
        finite: all outputs are finite.
        judged: the outputs have N or 2N rows and are finite.
        influence: how far one sample can change another's loss; None if not measured.
        decayed: the warning, if weight decay has shrunk the encoder to nothing.
        misplaced: rows of a stream are not in the order of the samples.
        equal: mixed rows of equal samples are equal; None is not known.
        own_weights: the encoder's, or, without a BatchFormer, those that act on mixed rows only.
        reached: which of them get a gradient from the mixed rows.
        stray: mixed rows depend on weights that are not among the model's parameters.
        cut_off: a parameter that acts on mixed rows only and gets no gradient from them.
        unshared: a weight of the classifier that acts on one stream only.
        untrained: a weight, or the backbone, that acts on mixed rows but gets no gradient there.
        plain_untrained: the same for plain rows.
        followed: layers with weights follow the encoder. If not, it may stand after the classifier.
        no_gradients: why gradients could not be computed.
        dropout: the first module that drops its whole input in training.
    """

    doubled: bool = False
    two_outputs: bool = False
    same_mixed: bool = False
    unreached: tuple[int, int] | None = None
    order: str | None = None
    replaced_all: bool = False
    effect: float | None = None
    idle: str | None = None
    later: str | None = None
    plain_encoded: bool = False
    in_encoder: bool = False
    unsteady: bool = False
    uneven: bool = False
    alike: bool = False
    finite: bool = True
    judged: bool = True
    influence: float | None = None
    decayed: str | None = None
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

    # Not a dataclass: with so many fields, it would be slow to import.
    def __init__(self, experiment: Experiment, base: Pass, rows: int) -> None:
        self.experiment, self.base, self.rows = experiment, base, rows
        self.used: list[BatchFormer] = []
        self.attending = self.plain_moved = torch.zeros(experiment.batch.rows, dtype=torch.bool)
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
    def negligible(self) -> bool:
        """Mixed rows depend on other samples by next to nothing."""
        return self.effect is not None and self.effect < NEGLIGIBLE and not self.control

    @property
    def attends(self) -> bool:
        """All mixed rows depend on other samples, in every output; or it is the control."""
        apart = self.unreached or self.negligible or self.idle or "attend" in self.faults
        return self.control or (bool(self.attending[1:].all()) and not apart)


def gather_evidence(experiment: Experiment, frozen: set[int], in_eval: Attention) -> Evidence:
    """Run the experiments.

    Args:
        frozen: ids of the parameters that the user has frozen.
        in_eval: what attends in eval.
    """
    n = experiment.batch.rows
    with record_attention(experiment.model) as attention:
        base = experiment.run_recorded()
    after = experiment.run_recorded(replaced_index(n, 0))
    with record_attention(experiment.model) as more_attention:
        larger = larger_batch(experiment)
    if larger is not None:
        experiment.learn_layout(base, larger[1], len(larger[0]))
        experiment.find_rows(after, n)
        experiment.find_rows(larger[1], len(larger[0]))
    first_replaced = replace_sample(experiment.batch, 0)
    seen = Evidence(experiment, base, base.count(n))
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
    seen.idle = idle_place(attention, in_eval)
    if larger is not None and seen.idle is None:
        sizes = (n, len(larger[0]))
        seen.idle = place_in_groups(attention, more_attention, in_eval, sizes)
    seen.two_outputs = pick.paired
    seen.doubled = seen.two_outputs or seen.rows == 2 * n
    encoder = [p for e in seen.used for p in e.parameters()]
    unseen = [e for e in seen.used if not any(id(p) in leaves for p in e.parameters())]
    if unseen and has_reentrant_checkpoint(base.outputs):
        seen.no_gradients, encoder = "the encoder is in a checkpoint with use_reentrant=True", []
    second: Pass | None = None
    noisy = base.noisy or after.noisy
    if seen.doubled and seen.finite and len(pick.views) > 1 and not noisy:
        batches = [experiment.batch, first_replaced, replace_sample(experiment.batch, 1, source=0)]
        second = experiment.run_again(replaced_index(n, 1, source=0))
        looks = [
            Observation(outputs, same_samples(batch))
            for outputs, batch in zip((base, after, second), batches, strict=True)
        ]
        pick = _without_faulty(seen, pick, looks, encoder)
    seen.pick = pick
    passes = [(base, after)]
    for draw in range(1, SEEDS) if base.noisy else ():
        passes.append((experiment.run(draw=draw), experiment.run(first_replaced, draw=draw)))
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
    seen.attending = shifts[mixed]
    seen.attending[0] = False  # the row of the replaced sample itself shows nothing
    for passed in passes:
        _add_effect(seen, pick, passed, mixed, 0)
    _compare_equal_samples(seen, pairs, plain, mixed)
    if seen.equal and seen.doubled and n > 2:
        # One pair of equal samples does not exclude orders that keep the pair together.
        second = second or experiment.run_again(replaced_index(n, 1, source=0))
        same = same_samples(replace_sample(experiment.batch, 1, source=0))
        for half in (plain, mixed):
            seen.misplaced |= compare_equal([t[half] for t in pick(second)], same)[1]
    # Norms over two or three channels can make the encoder's own rows equal.
    narrow = any(all_the_same([_flat(e, out)], []) for e, _, out in base.calls)
    if not noisy and not narrow:
        seen.same_mixed = all(
            all_the_same([t[mixed] for t in pick(each)], [t[plain] for t in pick(base)])
            for each in (base, after, second)
            if each is not None
        )
    if not (seen.equal and seen.attending[1:].all() and not seen.plain_moved[1:].any()):
        # Only rows without noise of their own are equal for equal samples.
        seen.unsteady = bool(moved(pick(base), pick(experiment.run())).any())
        seen.equal = None if seen.unsteady else seen.equal
    if not seen.attending[1:].all() and not seen.control and not seen.unsteady:
        if comparable:
            seen.attending = seen.attending | _attending_otherwise(seen, after, pick, mixed)
        if depends is not None:
            others = depends[mixed].clone()
            others.fill_diagonal_(False)
            seen.attending = seen.attending | others.any(1)
        seen.replaced_all = True
    elif (larger is not None and depends is None and seen.equal is not False) and not (
        seen.control or seen.unsteady or noisy
    ):
        order = seen.order or "plain, mixed"
        seen.unreached = unreached(experiment, *larger, pick, order if seen.doubled else None)
    if not (seen.control or seen.unsteady or noisy) and comparable:
        _look_later(seen, pick, mixed)
        if seen.idle is None and not seen.unsteady:
            _look_at_places(seen, pick, mixed, places_of(attention, in_eval))
    if seen.no_gradients is not None:
        return seen
    if base.calls:
        seen.influence = influence_of(base, n)
        if seen.influence is not None and not seen.control:
            seen.decayed = decay_warning(seen.used, seen.influence)
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


def _flat(encoder: BatchFormer, x: Tensor) -> Tensor:
    return x.movedim(encoder.batch_axis, 0).flatten(1)


def _used(
    encoders: list[BatchFormer], base: Pass, leaves: dict[int, tuple[Tensor, int]], frozen: set[int]
) -> list[BatchFormer]:
    """The encoders, without frozen ones that no pass calls: copies that a wrapper keeps (PEFT)."""
    called = {id(encoder) for encoder, _, _ in base.calls}
    called |= {id(e) for e in encoders if any(id(p) in leaves for p in e.parameters())}
    if not called:
        return []
    return [
        e for e in encoders if id(e) in called or not all(id(p) in frozen for p in e.parameters())
    ]


def _attending_otherwise(seen: Evidence, after: Pass, pick: Picker, mixed: list[int]) -> Tensor:
    """Which mixed rows depend on another sample, by all other experiments."""
    experiment, n = seen.experiment, seen.samples
    met = torch.zeros(n, dtype=torch.bool)
    for sample in range(1, n):
        after_one = experiment.run(replace_sample(experiment.batch, sample))
        shifts = moved(pick(seen.base), pick(after_one))[mixed]
        shifts[sample] = False
        met |= shifts
        _add_effect(seen, pick, (seen.base, after_one), mixed, sample)
    if not met[1:].all() and _reads_samples(seen.base, after, n):
        # An untrained network may map all samples to almost the same features, or to huge ones,
        # for which attention gives all weight to one sample.
        experiment = replace(experiment, encoders=[seen.base.calls[0][0]])
        steady = experiment.run(features="unit")
        noises: tuple[Features, ...] = ("unit_and_noise", "unit_and_loud_noise")
        for noise in noises:
            loud = experiment.run(features=noise)
            shifts = moved(pick(steady), pick(loud))[mixed]
            shifts[0] = False
            met |= shifts
            _add_effect(seen, pick, (steady, loud), mixed, 0)
    return met


def _add_effect(
    seen: Evidence, pick: Picker, passes: tuple[Pass, Pass], mixed: list[int], sample: int
) -> None:
    """Keep the largest effect of all experiments."""
    before, after = passes
    found = (seen.effect, effect(pick(before), pick(after), mixed, sample))
    seen.effect = max((size for size in found if size is not None), default=None)


def _look_later(seen: Evidence, pick: Picker, mixed: list[int]) -> None:
    """Whether the model mixes samples in a later training step too, if that is another."""
    experiment, n = seen.experiment, seen.samples
    same, replaced = list(range(n)), replaced_index(n, 0)

    def later(index: list[int], steps: int) -> Pass:
        again = experiment.run_again(same)
        seen.unsteady |= [t.shape for t in again.rows] != shapes
        seen.unsteady = seen.unsteady or bool(moved(pick(seen.base), pick(again)).any())
        return experiment.run_again(index, later=steps)

    shapes, steps = [t.shape for t in seen.base.rows], STEPS
    try:
        then = later(same, steps)
    except Exception:  # something else is counted too, such as a place in a queue
        steps = 1
        then = later(same, steps)
    if seen.unsteady:
        return
    if [t.shape for t in then.rows] != shapes:
        seen.later = "in a later training step the outputs have other shapes"
    elif moved(pick(seen.base), pick(then)).any():
        shifts = moved(pick(then), pick(later(replaced, steps)))[mixed]
        if seen.attending.any() and not shifts[1:].any():
            seen.later = "in a later training step no mixed row depends on another sample"


def _look_at_places(
    seen: Evidence, pick: Picker, mixed: list[int], places: dict[str, nn.Module]
) -> None:
    """If there are several places, whether the mixed rows change without each of them."""
    before = [t[mixed].detach().double() for t in pick(seen.base)]
    for name, module in places.items() if len(places) > 1 else ():
        with left_out(module):
            again = pick(seen.experiment.run_again(list(range(seen.samples))))
        pairs = zip(before, (t[mixed].detach().double() for t in again), strict=True)
        size = max(
            float((a - b).norm() / (a - a.mean(0)).norm().clamp(min=1e-12)) for a, b in pairs
        )
        if 0 < size < NEGLIGIBLE:  # at zero it belongs to another output, or has no gradient
            seen.idle = f"without {name} the mixed rows change by {size:.1g} of their spread"


def _reads_samples(base: Pass, after: Pass, n: int) -> bool:
    """Whether the first encoder's batch axis is that of the samples: only the first differs."""
    if not base.calls or not after.calls:
        return False
    encoder, x, _ = base.calls[0]
    if not (x - x.select(encoder.batch_axis, 0).unsqueeze(encoder.batch_axis)).any():
        return False  # nothing of the samples arrives
    if x.shape[encoder.batch_axis] != n or x.shape != after.calls[0][1].shape:
        return False
    return not moved([_flat(encoder, x)], [_flat(encoder, after.calls[0][1])])[1:].any()


def _compare_equal_samples(
    seen: Evidence,
    pairs: list[tuple[list[Tensor], list[Tensor]]],
    plain: list[int],
    mixed: list[int],
) -> None:
    """After the replacement the first sample equals another, so their rows must be equal too."""
    batch = seen.experiment.batch
    sames = [same_samples(batch), same_samples(replace_sample(batch, 0))]
    copies = int(sames[0].sum()) > seen.samples
    alike = []
    for pair in pairs:
        # Different samples may have equal rows, if all units of a narrow layer are zero.
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
    # Only the plain row of the replaced sample moves. At another place, the order is wrong.
    if seen.doubled and int(seen.plain_moved.sum()) == 1 and not seen.plain_moved[0]:
        seen.misplaced = True
    if all(alike):
        seen.equal = True
    elif seen.doubled and alike[0] and not seen.misplaced and not seen.base.noisy:
        seen.equal = False


def _without_faulty(
    seen: Evidence, pick: Picker, looks: list[Observation], encoder: list[nn.Parameter]
) -> Picker:
    """Note what is wrong with some outputs of several, and return the others.

    If something is wrong with all of them, return those that share the fault of the first.
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
    remaining = []
    for view, fault in zip(pick.views, found, strict=True):
        question = fault and fault[0]
        if question == main:
            remaining.append(view)
        elif fault is not None:
            name = seen.base.row_names[view[-1]]
            seen.faults.setdefault(fault[0], f"outputs{name}: {fault[1]}")
    return Picker(remaining, pick.further)


def _judge_further(seen: Evidence, after: Pass, pick: Picker) -> None:
    """Outputs of N rows beside the streams may mix samples only by the encoder."""
    weights = [p for _, p in seen.own_weights]
    for number in pick.further:
        shifts = moved([seen.base.rows[number]], [after.rows[number]])
        name, others = f"outputs{seen.base.row_names[number]}", int(shifts[1:].sum())
        if others == 1 and not shifts[0]:
            text = f"{name}: the rows of a stream are not in the order of samples"
            seen.faults.setdefault("first", text)
        # A new pass: weights may have been moved since the first one.
        elif others and not any(gradients([seen.experiment.run().rows[number]], weights)):
            text = f"{name}: replacing one sample moves {others} of {len(shifts) - 1} others"
            seen.faults.setdefault("stay", text)
