"""Which weights act on which stream, by gradients and by moving weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from batchformer.plug.observe import Features, gradients, moved, reachable, shifted
from batchformer.plug.row_tests import Picker
from batchformer.plug.shared_layers import (
    detached_encoders,
    stock_is_followed,
    stock_parameters,
    stream_specific,
)

if TYPE_CHECKING:
    from batchformer.plug.evidence import Seen

TRIED = 8
"""Weights without a gradient that are tried, to bound the time: each takes a pass."""


def find_stream_specific(
    seen: Seen, pick: Picker, plain: list[int], mixed: list[int]
) -> str | None:
    """A weight of the classifier that tells the streams apart.

    Not asked of attention by hand: nobody can say where it ends and the classifier begins.
    """
    model = seen.experiment.model
    known = {id(p) for e in seen.used for p in e.parameters()} or stock_parameters(model)
    if not seen.doubled or seen.order is None or not known:
        return None
    known |= reachable([x for _, x, _ in seen.base.calls[:1]]).keys()
    return stream_specific(model, seen.base, pick, (plain, mixed), known)


def is_followed(seen: Seen, pick: Picker, mixed: list[int]) -> bool:
    """Whether a layer with weights follows a stock encoder."""
    if seen.used:
        return True
    with detached_encoders(seen.experiment.model) as called:
        rows = [t[mixed] for t in pick(seen.experiment.run())]
    return not called or stock_is_followed(seen.experiment.model, rows)


def _reached(seen: Seen, pick: Picker, mixed: list[int], weights: list[Tensor]) -> list[bool]:
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


def _follows(seen: Seen, pick: Picker, half: list[int], weight: Tensor) -> bool:
    """Whether these rows move with a weight."""
    before = [t[half].detach() for t in pick(seen.base)]
    with shifted(weight):
        after = [t[half] for t in pick(seen.experiment.run())]
    return bool(moved(before, after).any())


def _cut_off(
    seen: Seen,
    pick: Picker,
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


def follow_gradients(
    seen: Seen,
    pick: Picker,
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
        stock = stock_parameters(model)
        for parameter, first, second in matrices:
            late = shared and leaves[id(parameter)][1] <= min(shared)
            if second and not first and late and id(parameter) not in stock:
                seen.unshared = names.get(id(parameter), "a weight")
