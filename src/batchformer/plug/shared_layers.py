"""Does one and the same classifier follow the encoder? Tests on the weights of each stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from batchformer.plug.observe import Pass, gradients, reachable
from batchformer.plug.row_tests import Picker

#: torch's own encoders, which many models have in the place of a BatchFormer.
STOCK = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@contextmanager
def detached_encoders(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Cut the gradient behind every stock encoder; gives those that a pass has called."""
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
    """Whether mixed rows train a weight matrix though the gradient is cut behind the encoders."""
    inside = stock_parameters(model)
    matrices = [p for p in model.parameters() if p.ndim >= 2 and id(p) not in inside]
    return any(gradients(rows, matrices))


def stock_parameters(model: nn.Module) -> set[int]:
    layers = (m for m in model.modules() if isinstance(m, STOCK))
    return {id(p) for layer in layers for p in layer.parameters()}


def stream_specific(
    model: nn.Module, base: Pass, pick: Picker, halves: Sequence[list[int]], known: set[int]
) -> str | None:
    """The name of a weight near the outputs that tells the streams apart.

    It acts on one stream alone and is no farther than the classifier, or it has some entries for
    the one stream and others for the other. Norms may: each stream may have statistics of its own.

    Args:
        halves: the rows of the plain and of the mixed stream.
        known: ids of the parameters of the encoder, and of what is known to precede it.
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


NEAR = 6
"""Weights nearest to an output among which its classifier's are."""


def _support(rows: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Which entries of each weight these rows have a gradient for."""
    none = [torch.zeros(w.shape, dtype=torch.bool, device=w.device) for w in weights]
    if not rows.requires_grad or not weights:
        return none
    aims = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)).to(rows)
    found = torch.autograd.grad(
        (rows * aims).sum(), list(weights), allow_unused=True, retain_graph=True
    )
    return [empty if g is None else g != 0 for g, empty in zip(found, none, strict=True)]
