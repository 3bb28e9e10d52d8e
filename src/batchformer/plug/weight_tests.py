"""Which weights act on which stream, by gradients and by moving weights; do all of them learn?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.nn.module import parameter_ids
from batchformer.plug.evidence import Evidence
from batchformer.plug.findings import AFTER_CLASSIFIER, LEARN, SHARED, TRAIN, Finding
from batchformer.plug.noise import fixed_noise
from batchformer.plug.observe import (
    Features,
    gradients,
    moved,
    parameter_names,
    perturbed,
    reachable,
)
from batchformer.plug.preserve import temporary_hooks
from batchformer.torch_private import Norm, gradients_of

#: The most weights without a gradient that are tried: each takes a pass.
TRIED = 8


def follow_gradients(seen: Evidence, leaves: dict[int, tuple[Tensor, int]]) -> None:
    """Find which weights of encoder, classifier and backbone act on which stream."""
    model, names = seen.experiment.model, parameter_names(seen.experiment.model)
    seen.own_weights = [
        (names.get(id(p), n), p) for e in seen.used for n, p in e.named_parameters()
    ]
    seen.receives_gradient = _receive_gradient(seen, [p for _, p in seen.own_weights])
    if not seen.doubled:
        return
    halves = seen.plain_rows(seen.base), seen.mixed_rows(seen.base)
    inside = parameter_ids(seen.used)
    before = reachable([x for _, x, _ in seen.base.calls[:1]])
    features = seen.base.calls[0][1] if seen.base.calls else None
    if features is not None and features.grad_fn is not None:
        reaches = gradients(halves[1], [features])[0]
        seen.untrained = seen.untrained or (None if reaches else "the backbone")
    outside = reachable(seen.base.outputs, around=[out for _, _, out in seen.base.calls])
    if before and not before.keys() & outside.keys():
        seen.plain_untrained = "the backbone"
    # A weight that modules share, such as a word embedding, may act before and after the encoder.
    around = [tensor for _, x, out in seen.base.calls for tensor in (x, out)]
    tied = _tied_parameters(model) & reachable(seen.base.outputs, around).keys()
    others = [
        p
        for key, (p, _) in leaves.items()
        if isinstance(p, nn.Parameter) and key not in inside and key not in before.keys() - tied
    ]
    on_plain, on_mixed = (gradients(half, others) for half in halves)
    acting = list(zip(others, on_plain, on_mixed, strict=True))
    mixed_weights = [p for p, first, second in acting if second and not first]
    seen.stray = any(id(p) not in names for p in mixed_weights)
    if not seen.used and seen.order is not None:
        seen.own_weights = [(names[id(p)], p) for p in mixed_weights if id(p) in names]
        seen.receives_gradient = [True] * len(seen.own_weights)
        if not seen.own_weights and not seen.stray:
            trained = {id(p) for p, first, second in acting if first or second} | before.keys()
            seen.cut_off = _cut_off(seen, trained)
    matrices = [entry for entry in acting if entry[0].ndim >= 2]
    seen.followed = any(first or second for p, first, second in matrices)
    plain_alone = [p for p, first, second in matrices if first and not second]
    for parameter in dict.fromkeys((*plain_alone[:1], *plain_alone[-1:])):  # nearest, farthest
        name = names.get(id(parameter), "a weight")
        if _follows(seen, seen.mixed, parameter):
            seen.untrained = name
        else:
            seen.unshared = name
    mixed_alone = [p for p, first, second in matrices if second and not first]
    if mixed_alone and _follows(seen, seen.plain, mixed_alone[0]):
        seen.plain_untrained = names.get(id(mixed_alone[0]), "a weight")
    if seen.unshared is None and seen.plain_untrained is None:
        # A layer of only the mixed stream may stand next to the encoder, not after the classifier.
        shared = [leaves[id(p)][1] for p, first, second in matrices if first and second]
        stock = _stock_parameters(model)
        for parameter in mixed_alone:
            late = shared and leaves[id(parameter)][1] <= min(shared)
            if late and id(parameter) not in stock:
                seen.unshared = names.get(id(parameter), "a weight")


def _tied_parameters(model: nn.Module) -> set[int]:
    """Ids of the parameters that several modules share."""
    counts = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {key for key, count in counts.items() if count > 1}


def _receive_gradient(seen: Evidence, weights: list[Tensor]) -> list[bool]:
    """Which of the encoder's weights get a gradient from the mixed rows.

    With a few samples, all units of a narrow layer may be zero, so other features are tried too.
    """
    found = gradients(seen.mixed_rows(seen.base), weights)
    others: tuple[Features, ...] = ("unit", "unit_and_loud_noise")
    for features in others if any(found) else ():
        if not all(found):
            more = gradients(seen.mixed_rows(seen.experiment.run(features=features)), weights)
            found = [a or b for a, b in zip(found, more, strict=True)]
    return found


def _follows(seen: Evidence, half: list[int], weight: Tensor) -> bool:
    """Whether the rows of one stream move with a weight."""
    before = [t[half].detach() for t in seen.pick(seen.base)]
    with perturbed(weight):
        after = [t[half] for t in seen.pick(seen.experiment.run())]
    return bool(moved(before, after).any())


def _cut_off(seen: Evidence, trained: set[int]) -> str | None:
    """The first weight without a gradient that moves the mixed rows but not the plain ones."""
    weights = seen.experiment.model.named_parameters()
    rest = [(name, p) for name, p in weights if id(p) not in trained and p.ndim >= 2]
    for name, weight in rest[:TRIED]:
        if _follows(seen, seen.mixed, weight) and not _follows(seen, seen.plain, weight):
            return name
    return None


# ---- Does one classifier follow the encoder?

#: torch's encoders, which many models use in place of a BatchFormer.
STOCK = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_NORMS = (Norm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
#: The classifier's weights are among this many weights nearest to an output.
NEAR = 6


def _stock_parameters(model: nn.Module) -> set[int]:
    return parameter_ids(m for m in model.modules() if isinstance(m, STOCK))


def is_followed(seen: Evidence) -> bool:
    """Whether a layer with weights follows a stock encoder.

    If so, mixed rows train a weight matrix even if the outputs of the encoders are detached.
    """
    model, called = seen.experiment.model, list[nn.Module]()
    stock = [module for module in model.modules() if isinstance(module, STOCK)]
    if seen.used or not stock:
        return True

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        called.append(module)
        return output.detach() if isinstance(output, Tensor) else output

    with temporary_hooks(module.register_forward_hook(cut) for module in stock):
        rows = seen.mixed_rows(seen.experiment.run())
    inside = _stock_parameters(model)
    matrices = [p for p in model.parameters() if p.ndim >= 2 and id(p) not in inside]
    return not called or any(gradients(rows, matrices))


def find_stream_specific(seen: Evidence) -> str | None:
    """The name of a weight near the outputs that treats the streams differently.

    It acts on one stream only and is not before the classifier, or some of its entries act on one
    stream and others on the other. Norms may do that: streams may have their own statistics. None
    for handwritten attention, whose end cannot be told from the classifier.
    """
    model, base = seen.experiment.model, seen.base
    allowed = parameter_ids(seen.used) or _stock_parameters(model)
    if not seen.doubled or seen.order is None or not allowed:
        return None
    allowed |= reachable([x for _, x, _ in base.calls[:1]]).keys()
    allowed |= parameter_ids(m for m in model.modules() if isinstance(m, _NORMS))
    names = parameter_names(model)
    suspects: dict[int, bool] = {}  # whether it does so in every output that it acts on
    for rows in seen.pick(base):
        found = [entry for key, entry in reachable([rows]).items() if key in names]
        near = [p for p, _ in found if id(p) not in allowed][:NEAR]
        plain, mixed = (_support(rows[half], near) for half in (seen.plain, seen.mixed))
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


def _support(rows: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Which entries of each weight get a gradient from these rows."""
    none = [torch.zeros(w.shape, dtype=torch.bool, device=w.device) for w in weights]
    if not rows.requires_grad or not weights:
        return none
    found = gradients_of((rows * fixed_noise(rows)).sum(), weights)
    return [empty if g is None else g != 0 for g, empty in zip(found, none, strict=True)]


# ---- What all of these say.


def about_weights(seen: Evidence) -> Iterator[Finding]:
    """Whether one classifier is shared, the encoder's weights learn, and both streams train."""
    if not seen.judged:
        return
    if seen.no_gradients is not None:
        yield Finding(LEARN, None, seen.no_gradients)
        return
    two_known_streams = seen.doubled and seen.order is not None
    if two_known_streams:
        yield _is_classifier_shared(seen)
    yield _do_weights_learn(seen)
    if two_known_streams:
        text = "gradients of both reach the same weights"
        for stream, name in (("plain", seen.plain_untrained), ("mixed", seen.untrained)):
            if name is not None:
                text = f"{stream} rows give {name} no gradient"
        train = seen.untrained is None and seen.plain_untrained is None
        yield Finding(TRAIN, train, text, "remove the detach() or no_grad() around a stream")


def _is_classifier_shared(seen: Evidence) -> Finding:
    if seen.unshared is not None:
        remedy = (
            "use the same classifier for both streams: head(two_streams(x, module)). Without "
            "it, accuracy falls from 50.9 to 42.4 in the paper"
        )
        return Finding(SHARED, False, f"{seen.unshared} acts on one stream alone", remedy)
    if not seen.followed:
        return Finding(SHARED, None, AFTER_CLASSIFIER)
    return Finding(SHARED, True, "its weights act on both streams")


def _do_weights_learn(seen: Evidence) -> Finding:
    note = f" ({seen.zeros[0]}: it begins after the first step)" if seen.zeros else ""
    frozen = sum(id(p) in seen.frozen for _, p in seen.own_weights)
    dead = [
        name
        for (name, _), ok in zip(seen.own_weights, seen.receives_gradient, strict=True)
        if not ok
    ]
    total = len(seen.own_weights)
    if frozen:
        remedy = "call requires_grad_(True) on them, unless you want a frozen control"
        return Finding(LEARN, False, f"{frozen} of {total} parameters are frozen", remedy)
    if seen.used:
        text = f"{total - len(dead)} of {total} parameters receive gradient{note}"
        remedy = (
            f"no gradient reaches {', '.join(dead[:4])}: are the mixed rows in the outputs, and "
            "not detached or rounded?"
        )
        return Finding(LEARN, not dead, text, remedy)
    if seen.cut_off is not None:
        text = f"{seen.cut_off} acts on the mixed rows and receives no gradient of them"
        remedy = (
            "between the encoder and the outputs, remove the detach(), no_grad(), round() or "
            "whatever else stops the gradient"
        )
        return Finding(LEARN, False, text, remedy)
    if seen.stray or (seen.order is not None and seen.attending.any() and not total):
        remedy = (
            "build the encoder once, in __init__, as a submodule: one that is built in forward, or "
            "kept in a list, is not trained"
        )
        text = "the encoder's weights are not among model.parameters()"
        return Finding(LEARN, False, text, remedy)
    if seen.doubled and total:
        return Finding(LEARN, True, f"{total} parameters of the mixed stream have gradient{note}")
    return Finding(LEARN, None, "the encoder's weights cannot be told from the others")
