"""The two streams of a doubled batch: double targets, split outputs, and the loss over both.

A doubled batch is the N plain rows, then the N mixed rows. Targets may be tensors, NumPy arrays,
and nested lists, dicts, tuples and dataclasses of them. A *list* has one entry for each sample
(labels as strings, detection targets). A *tuple*, dict or dataclass has parts with one row for
each sample (the two labels of mixup, boxes beside masks). Numbers, strings, None and 0-d tensors
have no rows and stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from batchformer.nn.arguments import choices, real_numbers
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

    Rows are the first axis of a tensor or array ``(N, ...)``, and the entries of a list, which
    holds one thing for each sample. Tuples, dicts and dataclasses are containers of such parts, and
    are copied. Other values stay.

    >>> duplicate(torch.tensor([3, 7]))
    tensor([3, 7, 3, 7])
    >>> duplicate({"names": ["a", "b"], "epoch": 4})
    {'names': ['a', 'b', 'a', 'b'], 'epoch': 4}
    """
    return _map_rows(targets, _repeated)  # type: ignore[no-any-return]


def split(outputs: Any) -> Streams:
    """Split a doubled batch ``(2N, ...)`` into its plain and its mixed half, each ``(N, ...)``.

    What counts as rows, and containers of them, are as in :func:`duplicate`.

    Raises:
        ValueError: the number of rows is odd, or the streams are not two halves of the rows.

    >>> split(torch.tensor([1, 2, 3, 4])).mixed
    tensor([3, 4])
    """
    for path, rows in _row_counts(outputs):
        if rows % 2:
            raise ValueError(
                f"split(): outputs{path} has {rows} rows. That is odd, so it is not a doubled "
                f"batch. A model in eval, or without BatchFormer, returns one stream; split only "
                f"outputs of an attached model in training."
            )
    joined = _joined(outputs)
    if joined is not None:
        raise ValueError(f"split(): {joined}")
    return Streams(
        plain=_map_rows(outputs, lambda rows: rows[: len(rows) // 2]),
        mixed=_map_rows(outputs, lambda rows: rows[len(rows) // 2 :]),
    )


def is_doubled(outputs: Any, targets: Any) -> bool:
    """Whether outputs have twice the rows of the targets; any other mismatch is an error."""
    produced = {rows for _, rows in _row_counts(outputs)}
    if len(produced) != 1:
        raise ValueError(
            f"match(): the parts of the outputs have {sorted(produced) or 'no'} rows. Pass the one "
            f"output that belongs to these targets, such as match(out.logits, y)."
        )
    rows_out = produced.pop()
    wrong = [(path, rows) for path, rows in _row_counts(targets) if rows not in _fits(rows_out)]
    doubled = {rows != rows_out for path, rows in _row_counts(targets)}
    if wrong or len(doubled) > 1:
        found = ", ".join(f"targets{path}: {rows}" for path, rows in wrong or _row_counts(targets))
        raise ValueError(
            f"match(): outputs have {rows_out} rows, so every part of the targets needs "
            f"{' or '.join(map(str, _fits(rows_out)))}, but {found}. A list must have one entry "
            f"for each sample: put parts that have rows into a tuple or dict, and leave out "
            f"parts that do not belong to samples."
        )
    joined = _joined(outputs) if doubled == {True} else None
    if joined is not None:
        warnings.warn(
            f"match(): {joined} If all outputs have the same targets, this is right as it is.",
            stacklevel=3,
        )
    return doubled == {True}


def match(outputs: Any, targets: T) -> T:
    """Targets for these outputs: doubled if the outputs hold two streams, else unchanged.

    The same line works in training and validation: ``criterion(logits, match(logits, y))``. What
    counts as rows is as in :func:`duplicate`.

    Raises:
        ValueError: a part of the targets has neither as many rows as the outputs nor half as many.

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
    """The loss over both streams, or the plain loss if there is only one.

    With P and M the criterion on the plain and the mixed half, and w = ``mixed_weight``:

    ``"mean"``
        (P + w M) / (1 + w). With w = 1 the paper's mean over 2N rows, with w = 0 the plain loss.
    ``"sum"``
        P + w M.
    ``"official"``
        1.5 (P + w M), as the released code computes it: P + M plus their mean. With w = 1 this is
        three times the paper's loss.

    With ``exchange=True`` (or the process group of ``attach``) and several ranks, the loss is
    multiplied by own rows x ranks / all rows. DDP's average over ranks is then the mean over all
    rows, even if ranks have different numbers of rows. Every rank calls this function. On a rank
    without rows the loss is a zero that is connected to the outputs, and the criterion is not
    called. If the criterion's ``reduction`` is ``"sum"`` (an attribute, or a keyword of
    ``functools.partial``), the loss is multiplied by the number of ranks instead, and DDP's
    average is the sum over all rows. Any other criterion is assumed to return a mean over its rows
    (with ``"none"``, values to be averaged). Class weights and ignored rows make it a mean over
    something else: use a sum for these. With gradients disabled (validation) nothing is exchanged,
    and the loss is that of this rank's rows.

    >>> logits, y = torch.randn(8, 5), torch.tensor([0, 1, 2, 3])
    >>> loss = stream_loss(torch.nn.functional.cross_entropy, logits, y)
    >>> bool(loss.isclose(torch.nn.functional.cross_entropy(logits, match(logits, y))))
    True
    """
    if isinstance(criterion, type) or not callable(criterion):
        raise TypeError(
            f"stream_loss(): the criterion is called with outputs and targets, such as "
            f"F.cross_entropy or nn.CrossEntropyLoss(), which {criterion!r} cannot be."
        )
    choices("stream_loss()", get_args(LossScale), loss_scale=loss_scale)
    if not isinstance(mixed_weight, Tensor):  # a tensor's value would be read from its device
        real_numbers("stream_loss()", mixed_weight=mixed_weight)
    group = None if isinstance(exchange, bool) else group_of(exchange)
    doubled = is_doubled(outputs, targets)
    marked = any(getattr(part, "holds_streams", False) for _, part in leaves(outputs))
    if marked and not [*_row_counts(targets)]:
        raise ValueError(
            "stream_loss(): the outputs hold two streams, and the targets have no rows that could "
            "tell. Pass targets with one row for each sample, or write the loss of each stream: "
            "plain, mixed = batchformer.split(outputs)."
        )
    share: tuple[int, int | Tensor] | None = None
    count = 1 if exchange is False else world_size(group)
    if count > 1 and torch.is_grad_enabled():
        rows = next(_row_counts(outputs))[1] // (2 if doubled else 1)
        parts = [part for _, part in leaves(outputs) if isinstance(part, Tensor)]
        if not parts:
            raise ValueError(
                "stream_loss(exchange=True): the outputs contain no tensor, so a rank without rows "
                "would have nothing to differentiate. Pass the model's tensors, such as its logits."
            )
        all_rows = total_rows(rows, parts[0].device, group)
        if not rows:
            zero = torch.zeros((), device=parts[0].device)
            return sum((part.sum() for part in parts if part.requires_grad and part.ndim), zero)
        share = (count, 1) if _is_sum(criterion) else (rows * count, all_rows)
    if doubled:
        plain, mixed = (criterion(half, targets) for half in split(outputs))
        loss = weigh_streams(plain, mixed, loss_scale, mixed_weight)
    else:
        loss = criterion(outputs, targets)
    return loss if share is None else loss * share[0] / share[1]


def weigh_streams(
    plain: Tensor, mixed: Tensor, loss_scale: LossScale, mixed_weight: float
) -> Tensor:
    """The loss of both streams from the loss of each, as in :func:`stream_loss`.

    >>> weigh_streams(torch.tensor(1.0), torch.tensor(4.0), "mean", 2.0)
    tensor(3.)
    """
    factor = {"mean": 1 / (1 + mixed_weight), "sum": 1.0, "official": 1.5}[loss_scale]
    return (plain + mixed_weight * mixed) * factor


def _is_sum(criterion: Callable[[Any, Any], Tensor]) -> bool:
    keywords = criterion.keywords if isinstance(criterion, functools.partial) else {}
    return getattr(criterion, "reduction", keywords.get("reduction")) == "sum"


def leaves(
    tree: Any, path: str = "", is_leaf: Callable[[Any], bool] = lambda part: False
) -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts, tuples, lists and dataclasses, with its path.

    A part for which ``is_leaf`` is true is not descended into.
    """
    parts = None if is_leaf(tree) else _parts(tree)
    if parts is None:
        yield path, tree
        return
    for name, part in parts:
        yield from leaves(part, path + name, is_leaf)


def map_leaves(
    tree: Any,
    change: Callable[[str, Any], Any],
    path: str = "",
    is_leaf: Callable[[Any], bool] = lambda part: False,
) -> Any:
    """Copies of the containers, with ``change(path, leaf)`` for each leaf of :func:`leaves`."""
    parts = None if is_leaf(tree) else _parts(tree)
    if parts is None:
        return change(path, tree)
    items = [map_leaves(part, change, path + name, is_leaf) for name, part in parts]
    if isinstance(tree, (tuple, list)):
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if type(tree) is dict:  # a compiler cannot trace copy.copy
        return dict(zip(tree, items, strict=True))
    rebuilt = copy.copy(tree)
    if isinstance(tree, Mapping):
        for key, item in zip(list(tree), items, strict=True):
            rebuilt[key] = item
    else:
        for field, item in zip(dataclasses.fields(tree), items, strict=True):
            object.__setattr__(rebuilt, field.name, item)  # a frozen dataclass has no other way
    return rebuilt


def _parts(tree: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container, each with its suffix of the path; None for a leaf."""
    if isinstance(tree, Mapping):
        return [(f"[{key!r}]", tree[key]) for key in tree]
    if isinstance(tree, (tuple, list)):
        return [(f"[{index}]", item) for index, item in enumerate(tree)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(f".{f.name}", getattr(tree, f.name)) for f in dataclasses.fields(tree)]
    return None


def _repeated(rows: Any) -> Any:
    if isinstance(rows, Tensor):
        return torch.cat((rows, rows))
    if isinstance(rows, list):
        return rows + rows
    return sys.modules["numpy"].concatenate((rows, rows))


def _joined(outputs: Any) -> str | None:
    """Advice if rows of the outputs are known not to be two halves; else None."""
    if torch.compiler.is_compiling():  # there, outputs are ordinary tensors
        return None
    known = (getattr(part, "not_halves", None) for _, part in leaves(outputs))
    listed = (part for _, part in leaves(outputs, is_leaf=_has_rows) if isinstance(part, list))
    if any(getattr(entry, "holds_streams", False) for part in listed for entry in part):
        return (
            "A list has one entry for each sample, but the entries of this one hold two streams "
            "each. Pass a tuple of them."
        )
    return next((advice for advice in known if isinstance(advice, str)), None)


def _fits(rows_out: int) -> tuple[int, ...]:
    return (rows_out,) if rows_out % 2 else (rows_out // 2, rows_out)


def _is_array(part: Any) -> bool:
    """Whether this is a tensor or a NumPy array.

    Raises:
        TypeError: it has rows and is neither: a packed sequence, a column of a table.
    """
    if isinstance(part, Tensor):
        return True
    if isinstance(part, (int, float, str)):  # a compiler cannot ask a number for its attributes
        return False
    numpy: Any = sys.modules.get("numpy")  # code that has an array has imported it
    if numpy is not None and isinstance(part, numpy.ndarray):
        return True
    if isinstance(part, torch.nn.utils.rnn.PackedSequence):
        raise TypeError("A PackedSequence has no rows to double. Pad it to a tensor first.")
    if hasattr(part, "__array__") and getattr(part, "ndim", False):
        raise TypeError(
            f"{type(part).__name__} cannot be doubled. Convert it with torch.as_tensor."
        )
    if isinstance(part, Sequence) and not isinstance(part, (list, tuple, str, bytes)):
        raise TypeError(f"{type(part).__name__} cannot be doubled. Convert it with list.")
    return False


def _has_rows(part: Any) -> bool:
    return isinstance(part, list) or (_is_array(part) and part.ndim > 0)


def _row_counts(tree: Any) -> Iterator[tuple[str, int]]:
    """The path and the number of rows of each part that has rows."""
    for path, part in leaves(tree, is_leaf=_has_rows):
        if _has_rows(part):
            yield path, len(part) if isinstance(part, list) else part.shape[0]


def _map_rows(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Change every part that has rows, and copy the containers."""
    return map_leaves(
        tree, lambda _, part: change(part) if _has_rows(part) else part, is_leaf=_has_rows
    )
