"""Side inputs: what a module reads beside the features; it needs 2N rows once these have 2N.

Attention masks, positional encodings, reference points, object queries and skip features have a row
for each sample. After a place they meet features of two streams. A training pass shows which
modules read both, and these modules repeat the rows of their side inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.nn.streams import leaves, map_leaves
from batchformer.plug.classifier import AttachError, Call, with_graph
from batchformer.plug.example import Batch, run_without_values
from batchformer.plug.preserve import temporary_hooks

#: The path of a module's first positional argument among ``(args, kwargs)``.
FEATURES = "[0][0]"

#: For each module, the axis of the samples in each tensor that it reads, by path; None: no samples.
RowAxes = dict[nn.Module, dict[str, int | None]]


#: Advice where features of 2N rows meet others of N outside a submodule's call.
OTHER_ROWS = (
    "What a submodule reads beside the features (masks, positional encodings, queries, skip "
    "features) is doubled for you; what is combined outside a submodule's call is not: there, "
    "write skip = batchformer.match(features, skip) in forward, or choose another place. "
)

#: Advice where a loop passes what ``attach`` has not seen, such as a mask of padding.
UNSEEN = (
    "BatchFormer doubles the features here, and the module reads others of {rows} rows beside them "
    "that attach() has not seen, so they are not doubled. Pass attach(..., example=), a batch with "
    "all that your loop passes."
)


@dataclass
class SideInputs:
    """Which arguments of one module are doubled."""

    # Path and axis of an argument whose number of rows says how many samples there are
    anchor: tuple[str, int]
    streams: int  # in the anchor: 2 after a place, 1 at the place, which doubles its features later
    # As in :data:`RowAxes`. A tensor that the traced passes did not have, such as a mask of images
    # that need padding, counts as one with its samples on the first axis.
    axes: dict[str, int | None] = field(default_factory=dict)

    def double(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with N rows doubled wherever the features have, or will have, 2N."""
        path, axis = self.anchor
        sizes = {p: t.shape[axis] for p, t in tensors((args, kwargs)) if p == path}
        rows = sizes.get(path, 0) // self.streams

        def change(path: str, part: Any) -> Any:
            if path == self.anchor[0] or not isinstance(part, Tensor):
                return part
            axis = self.axes.get(path, 0)
            if axis is None or part.ndim <= axis or part.shape[axis] != rows:
                return part
            return torch.cat((part, part), dim=axis)

        doubled: tuple[tuple[Any, ...], dict[str, Any]] = map_leaves((args, kwargs), change)
        return doubled


def tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested arguments that have an axis, with their paths."""
    return ((p, t) for p, t in leaves(tree) if isinstance(t, Tensor) and t.ndim)


def row_axes(model: nn.Module, batch: Batch) -> RowAxes:
    """Find the rows of samples in all arguments of all modules, by passes with N and N + 1 samples.

    The sizes of one pass do not show them: N images and N levels of features look the same.
    """
    more = batch.mapped(
        lambda part: torch.cat((part, part.narrow(batch.axis, 0, 1)), dim=batch.axis),
        lambda part: [*part, part[0]],
    )
    with with_graph(model):  # else torch's encoder layers read nested tensors in eval
        few, many = (
            run_without_values(model, part, lambda part: _shapes_read(model, part))
            for part in (batch, more)
        )
    found: RowAxes = {}
    for module, calls in few.items():
        axes = found.setdefault(module, {})
        for before, after in zip(calls, many.get(module, ()), strict=False):
            for path in before.keys() & after.keys():
                sizes = enumerate(zip(before[path], after[path], strict=False))
                rows = [axis for axis, pair in sizes if pair == (batch.rows, more.rows)]
                # Similarities (N, N) of all pairs grow on two axes: they have no rows of samples.
                axis = rows[0] if len(rows) == 1 else None
                axes[path] = axis if axes.get(path, axis) == axis else None
    return found


def _shapes_read(model: nn.Module, batch: Batch) -> dict[nn.Module, list[dict[str, torch.Size]]]:
    """The shapes of the tensors that each submodule reads in each of its calls."""
    found: dict[nn.Module, list[dict[str, torch.Size]]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        shapes = {path: tensor.shape for path, tensor in tensors((args, kwargs))}
        found.setdefault(module, []).append(shapes)

    named = ((name, m) for name, m in model.named_modules() if name)
    parts = [m for _, m in named if not isinstance(m, torch.jit.ScriptModule)]
    handles = (part.register_forward_pre_hook(note, with_kwargs=True) for part in parts)
    with temporary_hooks(handles):
        batch.run(model)
    return found


def find_side_inputs(
    axes: dict[str, int | None], args: Any, kwargs: Any, samples: int, doubles: bool
) -> SideInputs | None:
    """The side inputs of one call in a training pass, or None if no argument has to be doubled.

    Args:
        axes: the row axes of the module's arguments.
        doubles: whether the module is a place that will double its features.
    """
    rows = {
        path: (tensor.shape[axis], axis)
        for path, tensor in tensors((args, kwargs))
        if (axis := axes.get(path)) is not None and axis < tensor.ndim
    }
    streams = 1 if doubles else 2
    paths = [path for path, (size, _) in rows.items() if size == streams * samples]
    anchor = FEATURES if doubles else next(iter(paths), None)
    if anchor not in paths:
        return None
    beside = [path for path, (size, _) in rows.items() if size == samples and path != anchor]
    return SideInputs((anchor, rows[anchor][1]), streams, axes) if beside else None


# ---- The mask among the side inputs that says where a sample has only padding.


@dataclass
class PaddingMask:
    """The argument by which the module at a place learns where there is only padding."""

    # If the name contains "padding", True means padding, as in torch; otherwise True or 1 means a
    # real position, as in Hugging Face.
    name: str
    index: int | None  # its place among the positional arguments after the features, if it has one

    def visible(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int, batch_axis: int
    ) -> Tensor | None:
        """Where each sample has more than padding, (N, L) or (L, N) bool; None without a mask.

        The mask is ``(N, L)``, or that of attention, ``(N, 1, L, L)``, which is the same for all
        queries. A mask of numbers that are added to scores is below zero at padding.
        """
        given = kwargs.get(self.name)
        if given is None and self.index is not None and self.index < len(args):
            given = args[self.index]
        if given is None:
            return None
        if not isinstance(given, Tensor):
            raise TypeError(
                f"attach(mask={self.name!r}): BatchFormer cannot read a {type(given).__name__}. "
                f"Use an attention implementation whose mask is a tensor, or leave mask= out."
            )
        mask, inverted = given[:samples], "padding" in self.name
        if mask.is_floating_point() and (mask.ndim == 4 or inverted):
            mask, inverted = mask >= 0, False
        if mask.ndim == 4:
            mask = mask[:, 0, 0]
        return (mask.bool() ^ inverted).movedim(0, batch_axis)


def padding_mask(call: Call, name: str) -> PaddingMask:
    """The padding mask that the module takes as the argument of this name."""
    own = getattr(call.module, "_own_class", type(call.module))
    parameters = inspect.signature(own.forward).parameters
    names = [p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD][2:]
    takes = [*dict.fromkeys((*names, *call.kwargs))]
    if name not in takes:
        known = ", ".join(map(repr, takes)) or "no other arguments"
        raise AttachError(
            f"attach(): mask={name!r} is no argument of {call.name!r}, which takes {known} beside "
            f"the features."
        )
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][2:]
    return PaddingMask(name, positional.index(name) if name in positional else None)
