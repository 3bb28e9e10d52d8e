"""A tensor that remembers holding two streams, so that a forgotten ``match`` is called by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from batchformer.streams import leaves

REMEDY = (
    "These outputs hold two streams: {rows} rows for {half} samples, plain then mixed, because "
    "BatchFormer is attached and the model is training. Double the targets to go with them: "
    "loss = criterion(outputs, batchformer.match(outputs, targets)). For a metric take the plain "
    "rows: batchformer.split(outputs).plain."
)

#: Functions that compare outputs with targets, and broadcast (2N, 1) against (N,) without a word.
COMPARISONS = {
    *("sub", "subtract", "rsub", "__sub__", "__rsub__", "eq", "ne", "__eq__", "__ne__"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
}
TRANSPOSITIONS = {"t", "transpose", "swapaxes", "swapdims", "permute", "movedim"}


class TwoStreamTensor(Tensor):
    """Logits ``(2N, ...)`` of an attached model in training, and what keeps their rows.

    It is a plain tensor in all but one thing. An operation that fails because the other operand has
    N rows says what to do about it, and so does one that would pair N targets with 2N rows without
    failing. Copies and files hold an ordinary tensor.
    """

    _rows_axis = 0

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if torch.compiler.is_compiling():
                return func(*args, **kwargs)
            rows = _rows_in_vain(name, args, kwargs)
            if rows:
                raise RuntimeError(
                    f"{name} pairs {rows} targets with {2 * rows} rows.\n{_remedy(rows)}"
                )
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, ValueError, IndexError) as error:
                rows = _half_of_marked((args, tuple(kwargs.values())))
                if not rows:
                    raise
                kind = ValueError if isinstance(error, ValueError) else RuntimeError
                raise kind(f"{error}\n{_remedy(rows)}") from error
            # Attributes are what compilers read, and as_subclass is how to get an ordinary tensor.
            if name in ("__get__", "as_subclass"):
                return result
            marked = {_rows_of(t) for t in args if isinstance(t, TwoStreamTensor) and t.ndim}
            return _mark(result, marked, turned=name in TRANSPOSITIONS)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.as_subclass(Tensor), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


class _RowsLast(TwoStreamTensor):
    """The same after a transposition: ``(..., 2N)``."""

    _rows_axis = -1


def remember(outputs: Any) -> Any:
    """Mark doubled rows that await a loss; anything else, and anything traced, passes through."""
    if not _has_rows(outputs) or not outputs.requires_grad or _unmarkable():
        return outputs
    return outputs.as_subclass(TwoStreamTensor)


def _unmarkable() -> bool:
    """Whether a tracer is at work that knows no subclass of a tensor."""
    if torch.compiler.is_compiling():
        # Earlier compilers trace into no tensor subclass, and would break the graph.
        return torch.compiler.is_exporting() or not COMPILER_KNOWS_SUBCLASSES
    return torch._C._get_tracing_state() is not None


COMPILER_KNOWS_SUBCLASSES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


def _remedy(rows: int) -> str:
    return REMEDY.format(rows=2 * rows, half=rows)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _rows_of(tensor: TwoStreamTensor) -> int:
    return tensor.shape[tensor._rows_axis]


def _mark(result: Any, rows: set[int], turned: bool) -> Any:
    """What keeps the rows keeps the memory; the rest, such as a scalar loss, is ordinary."""
    if type(result).__module__ == "torch.return_types":  # values and indices of topk, max and sort
        return type(result)([_mark(part, rows, turned) for part in result])
    if not _has_rows(result) or isinstance(result, TwoStreamTensor):
        return result
    if result.shape[0] in rows:
        return result.as_subclass(TwoStreamTensor)
    return result.as_subclass(_RowsLast) if turned and result.shape[-1] in rows else result


def _half_of_marked(operands: Any) -> int:
    """N, if one operand has 2N rows of two streams and another has N; otherwise 0."""
    tensors = [tensor for _, tensor in leaves(operands) if _has_rows(tensor)]
    for marked in tensors:
        if isinstance(marked, TwoStreamTensor):
            rows, axis = _rows_of(marked), marked._rows_axis
            if any(2 * other.shape[axis] == rows for other in tensors):
                return rows // 2
    return 0


def _rows_in_vain(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """N, if 2N rows would be paired with N targets and nothing would fail; otherwise 0."""
    operands = [value for value in (*args, *kwargs.values()) if not isinstance(value, str)]
    marked = operands[0] if operands else None
    if name in COMPARISONS:
        tensors = [tensor for tensor in operands[:2] if _has_rows(tensor)]
        return _broadcast_rows(*tensors) if len(tensors) == 2 else 0
    if not isinstance(marked, TwoStreamTensor) or marked.ndim < 2 or marked._rows_axis:
        return 0
    if name == "__getitem__" and isinstance(args[1], tuple):
        # log_p[arange(N), y]: one number of each plain row, and the mixed rows are never trained.
        lengths = [_length(index) for index in args[1]]
        paired = len(lengths) > 1 and lengths[0] and lengths[0] == lengths[1]
        return lengths[0] if paired and 2 * lengths[0] == marked.shape[0] else 0
    if name == "gather":
        # log_p.gather(1, y[:, None]): an index may have fewer rows, and the others are left out.
        index = kwargs.get("index", args[-1])
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        along_rows = not isinstance(dim, int) or dim % marked.ndim == 0
        if _has_rows(index) and not along_rows and 2 * index.shape[0] == marked.shape[0]:
            return int(index.shape[0])
    return 0


def _broadcast_rows(a: Tensor, b: Tensor) -> int:
    """N for two streams ``(2N, 1)`` against targets ``(N,)``, which make ``(2N, N)``."""
    for outputs, targets in ((a, b), (b, a)):
        column = isinstance(outputs, TwoStreamTensor) and tuple(outputs.shape[1:]) == (1,)
        if column and targets.ndim == 1 and len(outputs) == 2 * len(targets) > 2:
            return len(targets)
    return 0


def _length(index: Any) -> int:
    """How many rows an index picks, 0 if it is none that picks one by one."""
    if isinstance(index, Tensor):
        return len(index) if index.ndim == 1 and index.dtype is not torch.bool else 0
    if isinstance(index, slice) or index is None or index is Ellipsis:
        return 0
    return len(index) if hasattr(index, "__len__") else 0
