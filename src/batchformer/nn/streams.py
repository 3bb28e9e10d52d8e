"""Rows of two streams: doubling targets, splitting outputs, and the loss over both.

A doubled batch is always the N plain rows, then the N mixed rows. Targets may be any nest of
tensors, NumPy arrays, lists, dicts, tuples and dataclasses. A *list* holds one entry for each
sample (labels as strings, detection targets); a *tuple*, dict or dataclass holds row-aligned parts
(the two labels of mixup, boxes beside masks). Numbers, strings, None and 0-d tensors have no rows
and pass through.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from batchformer.nn.exchange import group_of, total_rows, world_size

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
LossScale = Literal["mean", "sum", "official"]


class Streams(NamedTuple):
    """The two halves of a doubled batch."""

    plain: Any
    mixed: Any


def duplicate(targets: T) -> T:
    """Repeat every row: N plain targets, then the same N for the mixed stream.

    >>> duplicate(torch.tensor([3, 7]))
    tensor([3, 7, 3, 7])
    >>> duplicate({"names": ["a", "b"], "epoch": 4})
    {'names': ['a', 'b', 'a', 'b'], 'epoch': 4}
    """
    return _map_rows(  # type: ignore[no-any-return]
        targets, array=_repeated, sequence=lambda rows: rows + rows
    )


def split(outputs: Any) -> Streams:
    """Cut a doubled batch into its halves.

    >>> split(torch.tensor([1, 2, 3, 4])).mixed
    tensor([3, 4])
    """
    for path, rows in _row_counts(outputs):
        if rows % 2:
            raise ValueError(
                f"split(): outputs{path} has {rows} rows, an odd number, so it is not a doubled "
                f"batch. A model in eval, or without BatchFormer, gives one stream only."
            )
    return Streams(
        plain=_map_rows(outputs, array=_first_half, sequence=_first_half),
        mixed=_map_rows(outputs, array=_second_half, sequence=_second_half),
    )


def is_doubled(outputs: Any, targets: Any) -> bool:
    """Whether outputs have twice the rows of the targets; any other disagreement is an error."""
    produced = {rows for _, rows in _row_counts(outputs)}
    if len(produced) != 1:
        raise ValueError(
            f"match(): outputs with {sorted(produced) or 'no'} rows. Pass the output that belongs "
            f"to these targets, such as match(out.logits, y)."
        )
    rows_out = produced.pop()
    wrong = [(path, rows) for path, rows in _row_counts(targets) if rows not in _fits(rows_out)]
    doubled = {rows != rows_out for path, rows in _row_counts(targets)}
    if wrong or len(doubled) > 1:
        seen = ", ".join(f"targets{path}: {rows}" for path, rows in wrong or _row_counts(targets))
        raise ValueError(
            f"match(): outputs have {rows_out} rows, so every part of the targets needs "
            f"{' or '.join(map(str, _fits(rows_out)))}, but {seen}. A list counts as one entry "
            f"for each sample: put row-aligned parts into a tuple or dict, and leave out what "
            f"does not belong to samples."
        )
    return doubled == {True}


def match(outputs: Any, targets: T) -> T:
    """Targets for these outputs: doubled when the outputs hold two streams, unchanged otherwise.

    One line serves training and validation: ``criterion(logits, match(logits, y))``.

    >>> y = torch.tensor([0, 1])
    >>> match(torch.zeros(4, 10), y), match(torch.zeros(2, 10), y)
    (tensor([0, 1, 0, 1]), tensor([0, 1]))
    """
    return duplicate(targets) if is_doubled(outputs, targets) else targets


def stream_loss(
    criterion: Callable[[Any, Any], Tensor],
    outputs: Any,
    targets: Any,
    *,
    loss_scale: LossScale = "mean",
    mixed_weight: float = 1.0,
    exchange: bool | ProcessGroup | DeviceMesh = False,
) -> Tensor:
    """The loss over both streams; the plain loss where there is only one.

    With P and M the criterion on the plain and the mixed half, and w = ``mixed_weight``:

    ``"mean"``
        (P + w M) / (1 + w). For w = 1 the paper's mean over 2N rows; for w = 0 the plain loss.
    ``"sum"``
        P + w M.
    ``"official"``
        1.5 (P + w M), as the released code computes it: both halves and their mean, three times
        the paper's loss.

    With ``exchange=True``, or the process group that exchanges, and several ranks it is multiplied
    by own rows x ranks / all rows, so that DDP's average over these ranks is the mean over all
    their rows, however many each has. Every rank calls it; one without rows gets a zero that is
    connected to its outputs, and the criterion is not called. A criterion whose ``reduction`` is
    ``"sum"`` (an attribute, or a keyword of ``functools.partial``) is multiplied by the number of
    ranks instead: the average is then the sum over all rows. Any other is taken for a mean over its
    rows (with ``"none"``, for what is going to be averaged); class weights and ignored rows make it
    a mean over something else, for which take a sum. Where gradients are disabled (validation)
    nothing is exchanged, and the loss is that of the rows at hand.

    >>> logits, y = torch.randn(8, 5), torch.tensor([0, 1, 2, 3])
    >>> loss = stream_loss(torch.nn.functional.cross_entropy, logits, y)
    >>> bool(loss.isclose(torch.nn.functional.cross_entropy(logits, match(logits, y))))
    True
    """
    if loss_scale not in ("mean", "sum", "official"):
        raise ValueError(
            f"stream_loss(): loss_scale={loss_scale!r}; use 'mean', 'sum', 'official'."
        )
    doubled = is_doubled(outputs, targets)
    share: tuple[int, int | Tensor] | None = None
    group = group_of(exchange)
    count = 1 if exchange is False else world_size(group)
    if count > 1 and torch.is_grad_enabled():
        rows = next(_row_counts(outputs))[1] // (2 if doubled else 1)
        parts = [part for _, part in leaves(outputs) if isinstance(part, Tensor)]
        if not parts:
            raise ValueError(
                "stream_loss(exchange=True): the outputs hold no tensor, so a rank without rows "
                "has nothing to differentiate. Pass the model's tensors, such as its logits."
            )
        everyone = total_rows(rows, parts[0].device, group)
        if not rows:
            zero = torch.zeros((), device=parts[0].device)
            return sum((part.sum() for part in parts if part.requires_grad and part.ndim), zero)
        share = (count, 1) if _is_sum(criterion) else (rows * count, everyone)
    if doubled:
        halves = split(outputs)
        loss = criterion(halves.plain, targets) + mixed_weight * criterion(halves.mixed, targets)
        loss = loss * {"mean": 1 / (1 + mixed_weight), "sum": 1.0, "official": 1.5}[loss_scale]
    else:
        loss = criterion(outputs, targets)
    return loss if share is None else loss * share[0] / share[1]


def _is_sum(criterion: Callable[[Any, Any], Tensor]) -> bool:
    keywords = criterion.keywords if isinstance(criterion, functools.partial) else {}
    return getattr(criterion, "reduction", keywords.get("reduction")) == "sum"


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a nest with its path; a list is walked like a tuple here."""
    if isinstance(tree, Mapping):
        for key in tree:
            yield from leaves(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name), f"{path}.{field.name}")
    else:
        yield path, tree


def _repeated(rows: Any) -> Any:
    if isinstance(rows, Tensor):
        return torch.cat((rows, rows))
    return sys.modules["numpy"].concatenate((rows, rows))


def _first_half(rows: Any) -> Any:
    return rows[: len(rows) // 2]


def _second_half(rows: Any) -> Any:
    return rows[len(rows) // 2 :]


def _fits(rows_out: int) -> tuple[int, ...]:
    return (rows_out,) if rows_out % 2 else (rows_out // 2, rows_out)


def _is_array(part: Any) -> bool:
    """Whether this is a tensor or a NumPy array.

    Raises:
        TypeError: it has rows and is neither: a packed sequence, a column of a table.
    """
    if isinstance(part, Tensor):
        return True
    numpy: Any = sys.modules.get("numpy")  # code that has an array has imported it
    if numpy is not None and isinstance(part, numpy.ndarray):
        return True
    if isinstance(part, torch.nn.utils.rnn.PackedSequence):
        raise TypeError("A PackedSequence has no rows to double; pad it to a tensor first.")
    if hasattr(part, "__array__") and getattr(part, "ndim", False):
        raise TypeError(f"{type(part).__name__} cannot be doubled; pass torch.as_tensor(it).")
    return False


def _row_counts(tree: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """The number of rows of each part that has rows."""
    if _is_array(tree):
        if tree.ndim:
            yield path, tree.shape[0]
    elif isinstance(tree, list):
        yield path, len(tree)
    elif isinstance(tree, Mapping):
        for key in tree:
            yield from _row_counts(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, tuple):
        for index, item in enumerate(tree):
            yield from _row_counts(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from _row_counts(getattr(tree, field.name), f"{path}.{field.name}")


def _map_rows(
    tree: Any, *, array: Callable[[Any], Any], sequence: Callable[[list[Any]], list[Any]]
) -> Any:
    """Apply ``array`` and ``sequence`` to whatever has rows; rebuild the containers around."""

    def visit(part: Any) -> Any:
        if _is_array(part):
            return array(part) if part.ndim else part
        if isinstance(part, list):
            return sequence(part)
        if isinstance(part, tuple):
            items = [visit(item) for item in part]
            return type(part)(*items) if hasattr(part, "_fields") else type(part)(items)
        if isinstance(part, Mapping):
            rebuilt: Any = copy.copy(part)
            for key in list(part):
                rebuilt[key] = visit(part[key])
            return rebuilt
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            changed = copy.copy(part)
            for field in dataclasses.fields(part):
                # object.__setattr__ also reaches the fields of frozen dataclasses.
                object.__setattr__(changed, field.name, visit(getattr(part, field.name)))
            return changed
        return part

    return visit(tree)
