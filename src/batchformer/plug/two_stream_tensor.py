"""A tensor that knows it holds two streams, so that a forgotten ``match`` fails with advice."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from batchformer.nn.streams import leaves
from batchformer.torch_private import DisableTorchFunctionSubclass, let_compiled_code_take

REMEDY = (
    "These outputs hold two streams: {rows} rows for {half} samples, plain then mixed, because "
    "BatchFormer is attached and the model is training. Double the targets as well: "
    "loss = criterion(outputs, batchformer.match(outputs, targets)). For a metric take the plain "
    "rows: batchformer.split(outputs).plain."
)

HALVES = (
    "The streams are halves, not interleaved: rows i and {half} + i belong to sample i. Take "
    "plain, mixed = batchformer.split(outputs), or reshape to (2, {half}, ...)."
)

PARTS = (
    "{name} cuts {rows} rows into three parts, and the middle one has rows of both streams: the "
    "first {half} rows are plain, the others mixed. If the parts are roles of the samples, such as "
    "anchors, positives and negatives, cut each stream: plain, mixed = batchformer.split(outputs)."
)

JOINED = (
    "Several outputs were joined here: the plain and mixed rows of one, then the plain and mixed "
    "rows of the next. Call match or split for each before you join them: "
    "targets = torch.cat([match(out, y) for out, y in zip(outputs, labels)])."
)

#: Functions that compare outputs with targets, and silently broadcast (2N, 1) against (N,).
COMPARISONS = {
    *("sub", "subtract", "rsub", "__sub__", "__rsub__", "eq", "ne", "__eq__", "__ne__"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "kl_div", "dist"),
    *("hinge_embedding_loss", "multilabel_soft_margin_loss"),
}
#: Functions that a handwritten loss applies to outputs and targets. They are no comparisons in
#: themselves: (2N, 1) against (N,) is an error only once it is reduced to one number.
PRODUCTS = {"mul", "multiply", "__mul__", "__rmul__", "where", "xlogy"}
REDUCTIONS = {"mean", "sum"}
#: Functions whose index may have fewer rows than what it indexes.
SCATTERS = {
    *("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
}
INDEXED = {"gather", *SCATTERS}
RESHAPES = {"view", "reshape", "unflatten"}
FLATTENINGS = {"view", "reshape", "flatten"}
JOINS = {"cat", "concat", "concatenate", "vstack", "hstack"}
SPLITS = {"split", "chunk", "tensor_split", "unbind"}
DATA = Tensor.data.__get__  # type: ignore[attr-defined]
TRANSPOSITIONS = {"t", "transpose", "swapaxes", "swapdims", "permute", "movedim"}


class TwoStreamTensor(Tensor):
    """Logits ``(2N, ...)`` of an attached model in training, and results that keep their rows.

    It behaves as a plain tensor with one exception. Three kinds of operations raise an error that
    says what to do: those that fail because another operand has N rows, those that would silently
    pair N targets with 2N rows, and reshapes of 2N rows that join different samples. Copies, files
    and lists contain ordinary tensors and numbers.
    """

    _rows_axis = 0
    #: Read by ``split``, which takes the entries of a list for samples.
    holds_streams = True

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        operands = (*args, *kwargs.values())
        name = getattr(func, "__name__", "")
        with DisableTorchFunctionSubclass():
            if torch.compiler.is_compiling():
                let_compiled_code_take(*KINDS)
                return func(*args, **kwargs)
            rows = _silently_paired(name, args, kwargs)
            if rows:
                raise _pairing_error(name, rows)
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, ValueError, IndexError) as error:
                rows = _half_of_marked(operands)
                if not rows:
                    raise
                kind = ValueError if isinstance(error, ValueError) else RuntimeError
                raise kind(f"{error}\n{_remedy(rows)}") from error
            # Attributes stay unmarked, because compilers read them. So does what as_subclass
            # returns. But out.data is marked: old loops read it for a metric.
            if name == "as_subclass" or (name == "__get__" and func != DATA):
                return result
            if name in RESHAPES:
                _check_reshape(name, args, kwargs, result)
            if _is_all_pairs(name, operands, result):
                return result.as_subclass(_AllPairs)
            if _is_joined(name, args, result):
                return result.as_subclass(_Joined)
            if name in FLATTENINGS and _flattens(operands[0], result):
                return result.as_subclass(_Flattened)
            rows_of_marked = _marked_rows(operands)
            if name == "stack" and result.ndim > 1 and result.shape[1] in rows_of_marked:
                return result.as_subclass(_RowsSecond)
            if name in SPLITS:
                _check_parts(name, operands[0], result)
                return tuple(_mark(part, rows_of_marked, turned=False) for part in result)
            return _mark(result, rows_of_marked, turned=name in TRANSPOSITIONS)

    def __iter__(self) -> Iterator[Tensor]:
        rows: Iterator[Tensor] = super().__iter__()  # type: ignore[no-untyped-call]
        watched = not self._rows_axis and self.requires_grad and not torch.compiler.is_compiling()
        return _watched(self, rows) if watched else rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.as_subclass(Tensor), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


class _RowsLast(TwoStreamTensor):
    """The same after a transposition: ``(..., 2N)``."""

    _rows_axis = -1


class _RowsSecond(TwoStreamTensor):
    """The outputs of several layers, stacked: ``(layers, 2N, ...)``."""

    _rows_axis = 1


class _Flattened(TwoStreamTensor):
    """The same with positions flattened into the rows, ``(2N L, ...)``: still two halves."""


class _AllPairs(TwoStreamTensor):
    """``(2N, N)``: (2N, 1) outputs broadcast against (N,) targets, each row with each target."""


class _Joined(TwoStreamTensor):
    """The rows of several outputs, as ``torch.cat`` joins them: they are not two halves."""

    #: Read by ``match`` and ``split``, which would pair rows with targets of other samples.
    not_halves = JOINED

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
        with DisableTorchFunctionSubclass():
            if torch.compiler.is_compiling():
                let_compiled_code_take(*KINDS)
                return func(*args, **kwargs)
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, ValueError, IndexError) as error:
                if not _half_of_marked((*args, *kwargs.values())):
                    raise
                kind = ValueError if isinstance(error, ValueError) else RuntimeError
                raise kind(f"{error}\n{JOINED}") from error
            if name in ("__get__", "as_subclass") or type(result) is not Tensor or not result.ndim:
                return result
            rows = {len(t) for t in (*args, *kwargs.values()) if isinstance(t, cls) and t.ndim}
            keeps = len(result) in rows or _is_joined(name, args, result)
            return result.as_subclass(cls) if keeps else result


#: All classes of marked tensors.
KINDS = (TwoStreamTensor, _RowsLast, _RowsSecond, _Flattened, _AllPairs, _Joined)


def mark_two_streams(outputs: Any) -> Any:
    """Mark doubled rows that await a loss; return anything else, and anything traced, as it is.

    A tensor of another class (DTensor, FakeTensor, one of the user's) keeps that class.
    """
    ordinary = type(outputs) is Tensor and outputs.ndim and outputs.requires_grad
    return outputs.as_subclass(TwoStreamTensor) if ordinary and not _unmarkable() else outputs


def _unmarkable() -> bool:
    """Whether a tracer is active that does not support tensor subclasses."""
    if torch.compiler.is_compiling():
        # Earlier compilers do not trace into tensor subclasses and would break the graph.
        return not COMPILER_MARKS or torch.compiler.is_exporting()
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


#: Whether compiled code can mark its outputs.
COMPILER_MARKS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def _pairing_error(name: str, rows: int) -> RuntimeError:
    return RuntimeError(f"{name} pairs {rows} targets with {2 * rows} rows.\n{_remedy(rows)}")


def _remedy(rows: int) -> str:
    return REMEDY.format(rows=2 * rows, half=rows)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _rows_of(tensor: TwoStreamTensor) -> int:
    return tensor.shape[tensor._rows_axis]


def _marked_rows(operands: Sequence[Any]) -> dict[int, type[Tensor]]:
    """The rows of the marked operands, also of those in a list, which ``torch.cat`` takes."""
    listed = (part for value in operands if isinstance(value, (list, tuple)) for part in value)
    marked = (t for t in (*operands, *listed) if isinstance(t, TwoStreamTensor) and t.ndim)
    return {_rows_of(t): _Flattened if type(t) is _Flattened else TwoStreamTensor for t in marked}


def _mark(result: Any, rows: Mapping[int, type[Tensor]], turned: bool) -> Any:
    """Mark a result that keeps the rows; any other, such as a scalar loss, stays ordinary."""
    if type(result).__module__ == "torch.return_types":  # values and indices of topk, max and sort
        return type(result)([_mark(part, rows, turned) for part in result])
    if not _has_rows(result) or isinstance(result, TwoStreamTensor):
        return result
    if result.shape[0] in rows:
        return result.as_subclass(rows[result.shape[0]])
    return result.as_subclass(_RowsLast) if turned and result.shape[-1] in rows else result


def _is_joined(name: str, args: Sequence[Any], result: Any) -> bool:
    """Whether a function put the rows of several outputs of two streams one after another."""
    if name not in JOINS or not args or not isinstance(args[0], (list, tuple)):
        return False
    marked = [part for part in args[0] if isinstance(part, TwoStreamTensor) and not part._rows_axis]
    return len(marked) > 1 and len(result) == sum(map(len, args[0])) > max(map(len, marked))


def _flattens(outputs: Any, result: Tensor) -> bool:
    """Whether a reshape put positions into one axis with the rows."""
    if not isinstance(outputs, TwoStreamTensor) or outputs._rows_axis or not outputs.numel():
        return False
    return len(result) > len(outputs) and len(result) % len(outputs) == 0


def _half_of_marked(operands: Any) -> int:
    """N, if one operand has 2N rows of two streams and another has N; otherwise 0."""
    tensors = [tensor for _, tensor in leaves(operands) if _has_rows(tensor)]
    for marked in tensors:
        if isinstance(marked, TwoStreamTensor):
            rows, axis = _rows_of(marked), marked._rows_axis
            others = [other for other in tensors if axis < other.ndim]
            if any(2 * other.shape[axis] == rows for other in others):
                return rows // 2
    return 0


def _silently_paired(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """N, if 2N rows would be paired with N targets without an error; otherwise 0."""
    operands = [value for value in (*args, *kwargs.values()) if not isinstance(value, str)]
    marked = operands[0] if operands else None
    if name in REDUCTIONS and isinstance(marked, _AllPairs):
        over_all = len(operands) == 1 or operands[1] is None or kwargs.keys() == {"dtype"}
        return marked.shape[1] if over_all else 0
    if name in COMPARISONS:
        tensors = [tensor for tensor in operands[:2] if _has_rows(tensor)]
        return _broadcast_rows(*tensors) if len(tensors) == 2 else 0
    index: Any
    if name in SCATTERS and len(operands) > 3:
        # zeros.scatter_add(0, group, losses): an index may have fewer rows than the source.
        index, source = operands[2:4]
        if isinstance(source, TwoStreamTensor) and _has_rows(index):
            return len(index) if 2 * len(index) == len(source) else 0
    if not isinstance(marked, TwoStreamTensor) or marked.ndim < 2 or marked._rows_axis:
        return 0
    if name in ("__getitem__", "__setitem__") and isinstance(args[1], tuple):
        # log_p[arange(N), y] selects from the plain rows, so the mixed rows are never trained.
        lengths = [_length(index) for index in args[1]]
        paired = len(lengths) > 1 and lengths[0] and lengths[0] == lengths[1]
        if not paired or 2 * lengths[0] != marked.shape[0]:
            return 0
        # boxes[samples, queries] of a matcher may by chance have as many pairs as samples.
        return 0 if marked.ndim > 2 and _selects_mixed_rows(args[1][0], lengths[0]) else lengths[0]
    if name in INDEXED:
        # log_p.gather(1, y[:, None]) and zeros_like(out).scatter_(1, y[:, None], 1): an index may
        # have fewer rows, and the others are ignored.
        index = args[2] if len(args) > 2 else kwargs.get("index")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        along_rows = not isinstance(dim, int) or dim % marked.ndim == 0
        if not _has_rows(index) or 2 * index.shape[0] != marked.shape[0]:
            return 0
        samples = int(index.shape[0])
        if along_rows and name == "gather":
            # DeBERTa's own loss selects labelled samples so. Selecting the plain half is wrong.
            in_order = torch.arange(samples, device=index.device)
            return samples if torch.equal(index.flatten(1)[:, 0], in_order) else 0
        return 0 if along_rows else samples
    return 0


def _broadcast_rows(a: Tensor, b: Tensor) -> int:
    """N for two streams ``(2N, 1)`` against targets ``(N,)``, which make ``(2N, N)``."""
    for outputs, targets in ((a, b), (b, a)):
        column = isinstance(outputs, TwoStreamTensor) and tuple(outputs.shape[1:]) == (1,)
        # Parameters are no targets: the thresholds of an ordinal regression, a scale.
        given = targets.ndim == 1 and not targets.requires_grad
        if column and given and len(outputs) == 2 * len(targets) > 2:
            return len(targets)
    return 0


def _is_all_pairs(name: str, operands: Sequence[Any], result: Any) -> bool:
    """Whether the result pairs each of 2N rows with each of N targets."""
    if not _has_rows(result) or result.ndim != 2 or len(result) != 2 * result.shape[1]:
        return False
    tensors = [tensor for tensor in operands if _has_rows(tensor)]
    if any(isinstance(tensor, _AllPairs) for tensor in tensors):
        # Another matrix, such as (2N, K) class weights, shows that (2N, K) was meant.
        others = [tensor for tensor in tensors if not isinstance(tensor, _AllPairs)]
        return all(tensor.ndim < 2 or tensor.shape[-1] == 1 for tensor in others)
    if name not in PRODUCTS or any(t.ndim > 1 and t.shape[-1] != 1 for t in tensors):
        return False
    return any(_broadcast_rows(a, b) for a in tensors for b in tensors)


def _check_reshape(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Refuse a reshape of ``(2N, ...)`` to ``(N, ...)``, which joins neighbouring rows.

    With an even N, ``(N, 2, ...)`` also fits two views of each sample, so this only warns, as it
    does of three parts. A first size of -1 does not name N and is accepted. So is a reshape that
    undoes a flattening.
    """
    marked, *sizes = args
    if isinstance(marked, _Flattened):
        return
    if name == "unflatten":
        dim = sizes.pop(0) if sizes else kwargs["dim"]
        if dim not in (0, -marked.ndim):
            return
    sizes = sizes or list(kwargs.values())
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = list(sizes[0])
    if not isinstance(marked, TwoStreamTensor) or marked._rows_axis or not marked.ndim:
        return
    half = len(marked) // 2
    if len(marked) % 2 or half <= 2 or not sizes:
        return
    if sizes[0] != half:
        _warn_of_thirds(name, len(marked), sizes[0])
        return
    message = f"{name} to {tuple(out.shape)} joins rows of different samples. "
    message += HALVES.format(half=half)
    if half % 2 or out.ndim < 2 or out.shape[1] != 2:
        raise RuntimeError(message)
    message += " If your samples have two rows each, reshape to (-1, 2, ...)."
    warnings.warn(message, stacklevel=3)


def _check_parts(name: str, marked: Any, parts: Sequence[Tensor]) -> None:
    """Warn if rows, not channels or positions, are cut into three equal parts."""
    if not isinstance(marked, TwoStreamTensor) or marked._rows_axis or not parts[0].ndim:
        return
    if len({len(part) for part in parts}) == 1 and len(parts) * len(parts[0]) == len(marked):
        _warn_of_thirds(name, len(marked), len(parts))


def _warn_of_thirds(name: str, rows: int, parts: Any) -> None:
    """Warn, but do not refuse: a loss in parts is right if it cuts the doubled targets alike."""
    half = rows // 2
    if parts == 3 and half % 3 == 0:
        warnings.warn(PARTS.format(name=name, rows=rows, half=half), stacklevel=4)


def _watched(outputs: Tensor, rows: Iterator[Tensor]) -> Iterator[Tensor]:
    """Iterate over the rows; the backward pass fails if only the first N were paired and trained.

    ``zip(outputs, y)`` takes N + 1 rows and ``zip(y, outputs)`` takes N. Other code may take as
    many, to print a few rows, so the gradient must also be zero in all mixed rows.
    """
    taken = 0

    def check(gradient: Tensor) -> None:
        half = len(gradient) // 2
        if taken in (half, half + 1) and taken < len(gradient) and not gradient[half:].any():
            raise _pairing_error("A loop over the outputs", half)

    outputs.register_hook(check)  # type: ignore[no-untyped-call]

    def count() -> Iterator[Tensor]:
        nonlocal taken
        for row in rows:
            taken += 1
            yield row

    return count()


def _selects_mixed_rows(index: Any, samples: int) -> bool:
    """Whether an index has rows of the mixed half; assumed if it is not on the CPU."""
    rows = torch.as_tensor(index)
    return rows.device.type != "cpu" or bool((rows >= samples).any())


def _length(index: Any) -> int:
    """How many rows an index selects one by one; 0 if it is of another kind."""
    if isinstance(index, Tensor):
        return len(index) if index.ndim == 1 and index.dtype is not torch.bool else 0
    if isinstance(index, slice) or index is None or index is Ellipsis:
        return 0
    return len(index) if hasattr(index, "__len__") else 0
