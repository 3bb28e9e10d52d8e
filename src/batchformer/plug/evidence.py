"""The experiments of ``check`` in training: which rows depend on which samples and weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer
from batchformer.plug.alive import influence_of, why_gone
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
    shifted,
    source_of,
)


class Seen:
    """What the training passes showed.

    Attributes:
        experiment: the model with its noise held.
        base: the pass that the others are compared with.
        rows: rows of the output for N samples.
        doubled: there are two streams, of 2N rows or as two outputs of N rows.
        two_outputs: they are two outputs.
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
        followed: layers with weights follow the encoder.
        no_gradients: why gradients could not be computed.
        dropout: the first module that drops everything it is given, in training.
    """

    doubled: bool = False
    two_outputs: bool = False
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
        self.reached: list[bool] = []

    @property
    def samples(self) -> int:
        return self.experiment.batch.rows

    @property
    def control(self) -> bool:
        return bool(self.used) and all(encoder.attend == "self" for encoder in self.used)


def _orders(n: int) -> dict[str, tuple[list[int], list[int]]]:
    """Rows of the plain and of the mixed stream in every order that models are known to have."""
    first, second = list(range(n)), list(range(n, 2 * n))
    even, odd = list(range(0, 2 * n, 2)), list(range(1, 2 * n, 2))
    return {
        "plain, mixed": (first, second),
        "mixed, plain": (second, first),
        "plain and mixed in turn": (even, odd),
        "mixed and plain in turn": (odd, even),
    }


def look(experiment: Experiment, frozen: set[int]) -> Seen:
    """Run the experiments.

    Args:
        frozen: ids of the parameters that the user has frozen.
    """
    n = experiment.batch.rows
    base, after = experiment.run(), experiment.run(replaced(experiment.batch, 0))
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
    pick = _picker(base, after, n)
    seen.judged = pick is not None and seen.finite
    if pick is None:
        return seen
    seen.two_outputs = pick.pair is not None
    seen.doubled = seen.two_outputs or seen.rows == 2 * n
    passes = [(base, after)]
    for draw in range(1, SEEDS) if base.noisy else ():
        again = experiment.run(draw=draw), experiment.run(replaced(experiment.batch, 0), draw=draw)
        passes.append(again)
    pairs = [(pick(first), pick(second)) for first, second in passes]
    shifts = torch.stack([moved(*pair) for pair in pairs]).any(0)
    depends: Tensor | None = None
    comparable = True  # rows of two passes
    seen.uneven = any(first.states != second.states for first, second in passes)
    # The rows of the replaced sample itself, one of each stream, move clearly in most networks.
    clearly, streams = moved(*pairs[0], tolerance=1e-3), 1 + seen.doubled
    seen.alike = int(clearly.sum()) < streams and int(shifts.sum()) < n + streams - 1
    if seen.uneven or seen.alike:
        depends = _depends(experiment, pick)
        if depends is not None:
            comparable = not seen.uneven
            shifts = shifts | depends[:, 0] if comparable else depends[:, 0]
            seen.uneven = seen.alike = False
    encoder = [p for e in seen.used for p in e.parameters()]
    unseen = [e for e in seen.used if not any(id(p) in leaves for p in e.parameters())]
    if unseen and has_reentrant_checkpoint(base.outputs):
        seen.no_gradients, encoder = "the encoder is in a checkpoint with use_reentrant=True", []
    plain, mixed = list[int](), list(range(n))
    if seen.doubled:
        seen.order = _order(shifts, n, pick(base), encoder)
        plain, mixed = _orders(n)[seen.order or "plain, mixed"]
        seen.plain_moved = shifts[plain]
        seen.plain_encoded = any(gradients([t[plain] for t in pick(base)], encoder))
    seen.met = shifts[mixed]
    seen.met[0] = False  # its own row says nothing
    _compare_equal_samples(seen, pairs, plain, mixed)
    if seen.equal and seen.doubled and n > 2:
        # One pair of equal samples leaves orders open that keep the pair, such as swapped halves.
        second = pick(experiment.run(replaced(experiment.batch, 1, source=0)))
        for half in (plain, mixed):
            now = equal_pairs([t[half] for t in second])
            now.fill_diagonal_(False)
            seen.misplaced |= not now[0, 1] and bool(now.any())
    if not (seen.equal and seen.met[1:].all() and not seen.plain_moved[1:].any()):
        # Rows of equal samples that are equal have no noise of their own.
        repeated = experiment.run()
        seen.unsteady = bool(moved(pick(base), pick(repeated)).any())
        seen.equal = None if seen.unsteady else seen.equal
    if not seen.met[1:].all() and not seen.control and not seen.unsteady:
        if comparable:
            seen.met = seen.met | _met_otherwise(seen, after, pick, mixed)
        if depends is not None:
            others = depends[mixed].clone()
            others.fill_diagonal_(False)
            seen.met = seen.met | others.any(1)
        seen.replaced_all = True
    if seen.no_gradients is not None:
        return seen
    if base.calls:
        seen.influence = influence_of(base, n)
        if seen.influence is not None and not seen.control:
            seen.gone = why_gone(seen.used, seen.influence)
    try:
        _follow_gradients(seen, pick, plain, mixed, leaves)
    except RuntimeError as error:  # a checkpoint elsewhere in the model
        seen.no_gradients = str(error).splitlines()[0]
    return seen


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


@dataclass(eq=False, repr=False)
class _Picker:
    """The outputs to judge, with as many rows each: 2N, N, or those of two outputs joined."""

    numbers: list[int]
    pair: tuple[int, int] | None = None

    def __call__(self, seen: Pass) -> list[Tensor]:
        if self.pair is not None:
            return [torch.cat([seen.rows[number] for number in self.pair])]
        return [seen.rows[number] for number in self.numbers]


def _picker(base: Pass, after: Pass, n: int) -> _Picker | None:
    counts = [len(t) for t in base.rows]
    if 2 * n in counts:
        return _Picker([i for i, count in enumerate(counts) if count == 2 * n])
    single = [i for i, count in enumerate(counts) if count == n]
    if len(single) == 2 and base.rows[single[0]].shape == base.rows[single[1]].shape:
        mixes = [bool(moved([base.rows[i]], [after.rows[i]])[1:].any()) for i in single]
        if mixes[0] != mixes[1]:
            plain, mixed = single if mixes[1] else single[::-1]
            return _Picker(single, (plain, mixed))
    return _Picker(single) if single else None


def _order(shifts: Tensor, n: int, rows: list[Tensor], encoder: list[nn.Parameter]) -> str | None:
    """The order in which plain rows stay while mixed ones move, or depend on the encoder."""
    for name, (plain, mixed) in _orders(n).items():
        own = int(shifts[plain].sum()) == 1  # of the replaced sample, wherever it stands
        if not own or any(gradients([t[plain] for t in rows], encoder)):
            continue
        if shifts[mixed][1:].any() or any(gradients([t[mixed] for t in rows], encoder)):
            return name
    return None


TRIED = 8
"""Weights without a gradient that are tried, to bound the time: each takes a pass."""

FAINT = 1e-5
"""A gradient that is smaller, beside the largest of the same row, is next to nothing."""


def _depends(experiment: Experiment, pick: _Picker) -> Tensor | None:
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


def _met_otherwise(seen: Seen, after: Pass, pick: _Picker, mixed: list[int]) -> Tensor:
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
    seen: Seen,
    pairs: list[tuple[list[Tensor], list[Tensor]]],
    plain: list[int],
    mixed: list[int],
) -> None:
    """After the replacement the first sample equals another: so must their rows."""
    alike, other = [], source_of(0, seen.samples)
    for base, after in pairs:
        for half in (plain, mixed) if seen.doubled else (mixed,):
            before, now = (equal_pairs([t[half] for t in rows]) for rows in (base, after))
            new = now & ~before
            new.fill_diagonal_(False)
            alike.append(bool(now[0, other]))
            seen.misplaced |= not now[0, other] and bool(new.any())
    # One plain row moves with the replaced sample. If it is another's, the order is wrong.
    if seen.doubled and int(seen.plain_moved.sum()) == 1 and not seen.plain_moved[0]:
        seen.misplaced = True
    if all(alike):
        seen.equal = True
    elif seen.doubled and alike[0] and not seen.misplaced and not seen.base.noisy:
        seen.equal = False


def _reached(seen: Seen, pick: _Picker, mixed: list[int], weights: list[Tensor]) -> list[bool]:
    """Which of the encoder's weights the mixed rows have a gradient for.

    A few samples may leave all units of a narrow layer at zero, so other features are tried too.
    """
    found = gradients([t[mixed] for t in pick(seen.base)], weights)
    others: tuple[Features, ...] = ("unit", "unit_and_loud_noise")
    for features in others if any(found) else ():
        if not all(found):
            again = pick(seen.experiment.run(features=features))
            more = gradients([t[mixed] for t in again], weights)
            found = [a or b for a, b in zip(found, more, strict=True)]
    return found


def _follows(seen: Seen, pick: _Picker, half: list[int], weight: Tensor) -> bool:
    """Whether these rows move with a weight."""
    before = [t[half].detach() for t in pick(seen.base)]
    with shifted(weight):
        after = [t[half] for t in pick(seen.experiment.run())]
    return bool(moved(before, after).any())


def _cut_off(
    seen: Seen,
    pick: _Picker,
    plain: list[int],
    mixed: list[int],
    weights: list[tuple[str, nn.Parameter]],
) -> str | None:
    """The first of these weights with which the mixed rows move, and the plain ones do not."""
    for name, weight in [entry for entry in weights if entry[1].ndim >= 2][:TRIED]:
        follows = (_follows(seen, pick, half, weight) for half in (mixed, plain))
        if next(follows) and not next(follows):
            return name
    return None


def _follow_gradients(
    seen: Seen,
    pick: _Picker,
    plain: list[int],
    mixed: list[int],
    leaves: dict[int, tuple[Tensor, int]],
) -> None:
    """Which weights act on which stream: the encoder's, the classifier's, the backbone's."""
    model, rows = seen.experiment.model, pick(seen.base)
    names = {id(p): name for name, p in model.named_parameters()}
    halves = [[t[half] for t in rows] for half in (plain, mixed)]
    inside = {id(p) for encoder in seen.used for p in encoder.parameters()}
    encoder: list[tuple[str, Tensor]] = [
        (names.get(id(p), n), p) for e in seen.used for n, p in e.named_parameters()
    ]
    seen.own_weights = encoder
    seen.reached = _reached(seen, pick, mixed, [p for _, p in encoder])
    if not seen.doubled:
        return
    before = reachable([x for _, x, _ in seen.base.calls[:1]])
    features = seen.base.calls[0][1] if seen.base.calls else None
    if features is not None and features.grad_fn is not None:
        reaches = gradients(halves[1], [features])[0]
        seen.untrained = seen.untrained or (None if reaches else "the backbone")
    outside = reachable(seen.base.outputs, around=[out for _, _, out in seen.base.calls])
    if before and not before.keys() & outside.keys():
        seen.plain_untrained = "the backbone"
    others = [
        p
        for key, (p, _) in leaves.items()
        if isinstance(p, nn.Parameter) and key not in inside and key not in before
    ]
    on_plain, on_mixed = (gradients(half, others) for half in halves)
    acting = list(zip(others, on_plain, on_mixed, strict=True))
    mixed_weights = [p for p, first, second in acting if second and not first]
    seen.stray = any(id(p) not in names for p in mixed_weights)
    if not seen.used and seen.order is not None:
        seen.own_weights = [(names[id(p)], p) for p in mixed_weights if id(p) in names]
        seen.reached = [True] * len(seen.own_weights)
        if not seen.own_weights and not seen.stray:
            trained = {id(p) for p, first, second in acting if first or second} | before.keys()
            rest = [(name, p) for name, p in model.named_parameters() if id(p) not in trained]
            seen.cut_off = _cut_off(seen, pick, plain, mixed, rest)
    matrices = [entry for entry in acting if entry[0].ndim >= 2]
    seen.followed = any(first or second for p, first, second in matrices)
    plain_alone = [p for p, first, second in matrices if first and not second]
    for parameter in dict.fromkeys((*plain_alone[:1], *plain_alone[-1:])):  # nearest, farthest
        name = names.get(id(parameter), "a weight")
        if _follows(seen, pick, mixed, parameter):
            seen.untrained = name
        else:
            seen.unshared = name
    mixed_alone = [p for p, first, second in matrices if second and not first]
    if mixed_alone and _follows(seen, pick, plain, mixed_alone[0]):
        seen.plain_untrained = names.get(id(mixed_alone[0]), "a weight")
    if seen.unshared is None and seen.plain_untrained is None:
        # A layer of the mixed stream alone may stand around the encoder, not after the classifier.
        shared = [leaves[id(p)][1] for p, first, second in matrices if first and second]
        layers = [m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer)]
        stock = {id(p) for layer in layers for p in layer.parameters()}
        for parameter, first, second in matrices:
            late = shared and leaves[id(parameter)][1] <= min(shared)
            if second and not first and late and id(parameter) not in stock:
                seen.unshared = names.get(id(parameter), "a weight")
