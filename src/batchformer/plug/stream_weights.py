"""Which weights act on which stream, by gradients and by moving weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from batchformer.plug.observe import Features, Pass, gradients, moved, perturbed, reachable
from batchformer.plug.row_tests import Picker
from batchformer.torch_private import Norm

if TYPE_CHECKING:
    from batchformer.plug.evidence import Evidence

#: The most weights without a gradient that are tried: each takes a pass.
TRIED = 8


def find_stream_specific(
    seen: Evidence, pick: Picker, plain: list[int], mixed: list[int]
) -> str | None:
    """A weight of the classifier that treats the streams differently.

    None for handwritten attention, of which the end cannot be told from the classifier.
    """
    model = seen.experiment.model
    known = {id(p) for e in seen.used for p in e.parameters()} or stock_parameters(model)
    if not seen.doubled or seen.order is None or not known:
        return None
    known |= reachable([x for _, x, _ in seen.base.calls[:1]]).keys()
    return stream_specific(model, seen.base, pick, (plain, mixed), known)


def is_followed(seen: Evidence, pick: Picker, mixed: list[int]) -> bool:
    """Whether a layer with weights follows a stock encoder."""
    if seen.used:
        return True
    with detached_encoders(seen.experiment.model) as called:
        rows = [t[mixed] for t in pick(seen.experiment.run())]
    return not called or stock_is_followed(seen.experiment.model, rows)


def _reached(seen: Evidence, pick: Picker, mixed: list[int], weights: list[Tensor]) -> list[bool]:
    """Which of the encoder's weights get a gradient from the mixed rows.

    With a few samples, all units of a narrow layer may be zero, so other features are tried too.
    """
    found = gradients([t[mixed] for t in pick(seen.base)], weights)
    others: tuple[Features, ...] = ("unit", "unit_and_loud_noise")
    for features in others if any(found) else ():
        if not all(found):
            again = pick(seen.experiment.run(features=features))
            more = gradients([t[mixed] for t in again], weights)
            found = [a or b for a, b in zip(found, more, strict=True)]
    return found


def _follows(seen: Evidence, pick: Picker, half: list[int], weight: Tensor) -> bool:
    """Whether these rows move with a weight."""
    before = [t[half].detach() for t in pick(seen.base)]
    with perturbed(weight):
        after = [t[half] for t in pick(seen.experiment.run())]
    return bool(moved(before, after).any())


def _cut_off(
    seen: Evidence,
    pick: Picker,
    plain: list[int],
    mixed: list[int],
    weights: list[tuple[str, nn.Parameter]],
) -> str | None:
    """The first of these weights with which the mixed rows move and the plain rows do not."""
    for name, weight in [entry for entry in weights if entry[1].ndim >= 2][:TRIED]:
        follows = (_follows(seen, pick, half, weight) for half in (mixed, plain))
        if next(follows) and not next(follows):
            return name
    return None


def follow_gradients(
    seen: Evidence,
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
        # A layer of only the mixed stream may stand next to the encoder, not after the classifier.
        shared = [leaves[id(p)][1] for p, first, second in matrices if first and second]
        stock = stock_parameters(model)
        for parameter, first, second in matrices:
            late = shared and leaves[id(parameter)][1] <= min(shared)
            if second and not first and late and id(parameter) not in stock:
                seen.unshared = names.get(id(parameter), "a weight")


# ---- Does one classifier follow the encoder?

#: torch's encoders, which many models use in place of a BatchFormer.
STOCK = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_NORMS = (Norm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@contextmanager
def detached_encoders(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Detach the outputs of stock encoders; yields those that a pass has called."""
    called: list[nn.Module] = []

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        called.append(module)
        return output.detach() if isinstance(output, Tensor) else output

    handles = [m.register_forward_hook(cut) for m in model.modules() if isinstance(m, STOCK)]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def stock_is_followed(model: nn.Module, rows: Sequence[Tensor]) -> bool:
    """Whether mixed rows train a weight matrix although the encoders' outputs are detached."""
    inside = stock_parameters(model)
    matrices = [p for p in model.parameters() if p.ndim >= 2 and id(p) not in inside]
    return any(gradients(rows, matrices))


def stock_parameters(model: nn.Module) -> set[int]:
    layers = (m for m in model.modules() if isinstance(m, STOCK))
    return {id(p) for layer in layers for p in layer.parameters()}


def stream_specific(
    model: nn.Module, base: Pass, pick: Picker, halves: Sequence[list[int]], known: set[int]
) -> str | None:
    """The name of a weight near the outputs that treats the streams differently.

    It acts on one stream only and is not before the classifier, or some of its entries act on one
    stream and others on the other. Norms may do that: streams may have their own statistics.

    Args:
        halves: the rows of the plain and of the mixed stream.
        known: ids of the parameters of the encoder, and of the layers before it.
    """
    norms = (m for m in model.modules() if isinstance(m, _NORMS))
    allowed = known | {id(p) for norm in norms for p in norm.parameters()}
    names = {id(p): name for name, p in model.named_parameters()}
    suspects: dict[int, bool] = {}  # whether it does so in every output that it acts on
    for rows in pick(base):
        found = [entry for key, entry in reachable([rows]).items() if key in names]
        near = [p for p, _ in found if id(p) not in allowed][:NEAR]
        plain, mixed = (_support(rows[half], near) for half in halves)
        shared = [bool((a & b).any()) for a, b in zip(plain, mixed, strict=True)]
        matrices = [i for i, p in enumerate(near) if p.ndim >= 2 and shared[i]]
        distances = {id(p): distance for p, distance in found}
        last = distances[id(near[matrices[0]])] if matrices else -1
        for i, parameter in enumerate(near):
            on_plain, on_mixed = bool(plain[i].any()), bool(mixed[i].any())
            late = distances[id(parameter)] <= last
            if on_plain or on_mixed:
                apart = not shared[i] and (late or (on_plain and on_mixed))
                suspects[id(parameter)] = suspects.get(id(parameter), True) and apart
    return next((names[key] for key, apart in suspects.items() if apart), None)


#: The classifier's weights are among so many weights nearest to an output.
NEAR = 6


def _support(rows: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Which entries of each weight get a gradient from these rows."""
    none = [torch.zeros(w.shape, dtype=torch.bool, device=w.device) for w in weights]
    if not rows.requires_grad or not weights:
        return none
    aims = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)).to(rows)
    found = torch.autograd.grad(
        (rows * aims).sum(), list(weights), allow_unused=True, retain_graph=True
    )
    return [empty if g is None else g != 0 for g, empty in zip(found, none, strict=True)]
