"""Which tensors of a model's outputs ``check`` judges, and on which axis each has its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from batchformer.nn.streams import leaves

#: Outputs of transformers' models that no loss uses.
_INTERNAL = re.compile(
    r"(hidden_states?|attentions|past_key_values|cross_attentions|reference_points)\b"
)


def named_outputs(outputs: Any) -> list[tuple[str, Tensor]]:
    """Every floating-point tensor that has an axis, with its path; ``logits`` come first.

    >>> [name for name, _ in named_outputs({"logits": torch.ones(2), "loss": torch.ones(())})]
    ["['logits']"]
    """
    found = [
        (path, leaf)
        for path, leaf in leaves(outputs)
        if isinstance(leaf, Tensor) and leaf.ndim and leaf.is_floating_point()
    ]
    kept = [entry for entry in found if not _INTERNAL.search(entry[0])] or found
    return sorted(kept, key=lambda entry: entry[0] not in ("['logits']", ".logits"))


class RowAxis(NamedTuple):
    """Where an output has its rows."""

    axis: int  # the axis that grows with the batch
    each: int = 1  # rows of one sample in a stream, if positions were flattened into the rows
    streams: int | None = None  # the axis of the two streams, in outputs like (2, N, K)


#: The row axis of each output; None if its rows are not those of samples.
Layout = list[RowAxis | None]


class InEval(NamedTuple):
    """The shape of an output in eval for N samples, and its rows for one sample."""

    shape: torch.Size
    each: int


def growing_axes(few: Tensor, many: Tensor, sizes: tuple[int, int]) -> list[int]:
    """The axes whose size is a multiple of the batch size, from outputs for two batch sizes.

    >>> growing_axes(torch.zeros(4, 2, 5), torch.zeros(8, 4, 5), (4, 8))  # 2 and 4: of half of it
    [0]
    """
    if few.ndim != many.ndim:
        return []
    return [
        axis
        for axis in range(few.ndim)
        if few.shape[axis] * sizes[1] == many.shape[axis] * sizes[0] > 0
        and many.shape[axis] % sizes[1] == 0
    ]


def find_layout(few: Sequence[Tensor], many: Sequence[Tensor], sizes: tuple[int, int]) -> Layout:
    """The rows of outputs in eval; empty if no output has any.

    An output that grows on two axes, such as the similarities (N, N) of all pairs, has no rows of
    samples.
    """
    if len(few) != len(many):
        return []
    layout: Layout = []
    for small, large in zip(few, many, strict=True):
        axes = growing_axes(small, large, sizes)
        each = large.shape[axes[0]] // sizes[1] if axes else 0
        # Two rows of a sample are two streams; more are positions that were flattened into rows.
        layout.append(RowAxis(axes[0], each if each > 2 else 1) if len(axes) == 1 else None)
    return layout if any(layout) else []


def training_layout(
    names: Sequence[str],
    few: Sequence[Tensor],
    many: Sequence[Tensor],
    sizes: tuple[int, int],
    in_eval: dict[str, InEval],
) -> Layout:
    """The rows of outputs in training; empty if no output has any.

    Args:
        names: the names of the outputs.
        few, many: the outputs for both batch sizes.
        in_eval: the shapes of the outputs in eval for the first of these sizes, by name.
    """
    if len(few) != len(many):
        return []
    layout: Layout = []
    for name, small, large in zip(names, few, many, strict=True):
        axes = growing_axes(large, small, sizes[::-1])
        if len(axes) != 1:
            layout.append(None)
            continue
        rows, plain = small.shape[axes[0]] // sizes[0], in_eval.get(name)
        if plain is None and len(in_eval) == 1:  # eval gives one output under another name
            (plain,) = in_eval.values()
        each = plain.each if plain is not None and rows % plain.each == 0 else 1
        streams = None
        if plain is not None and rows == plain.each:
            streams = _stream_axis(small.shape, axes[0], plain.shape)
        layout.append(RowAxis(axes[0], each, streams))
    return layout if any(layout) else []


def _stream_axis(shape: torch.Size, rows: int, in_eval: torch.Size) -> int | None:
    """The axis of size two that eval lacks."""
    for axis, size in enumerate(shape):
        if size == 2 and axis != rows and (*shape[:axis], *shape[axis + 1 :]) == tuple(in_eval):
            return axis
    return None


def find_rows(
    named: Sequence[tuple[str, Tensor]], samples: int, layout: Layout
) -> list[tuple[str, Tensor]]:
    """The outputs that have rows, as (rows, features) each; stacked streams as two outputs."""
    if len(layout) != len(named):
        layout = [RowAxis(_row_axis(tensor, samples)) for _, tensor in named]
    found: list[tuple[str, Tensor]] = []
    for (name, tensor), place in zip(named, layout, strict=True):
        if place is None:
            continue
        axis, each, streams = place
        parts = [(name, tensor)]
        if streams is not None:
            parts = [(f"{name}[{i}]", part) for i, part in enumerate(tensor.unbind(streams))]
            axis -= streams < axis
        for label, part in parts:
            if axis < part.ndim and part.shape[axis] and part.shape[axis] % each == 0:
                rows = part.movedim(axis, 0)
                found.append((label, rows.reshape(len(rows) // each, -1)))
    return found


def as_rows(outputs: Sequence[Tensor], samples: int, layout: Layout) -> list[Tensor]:
    """The outputs that have rows, as (rows, features) each."""
    return [rows for _, rows in find_rows([("", t) for t in outputs], samples, layout)]


def _row_axis(tensor: Tensor, samples: int) -> int:
    counts = (samples, 2 * samples)
    turned = tensor.ndim > 1 and tensor.shape[0] not in counts and tensor.shape[1] in counts
    return int(turned)
