"""A tensor that remembers holding two streams, so that a forgotten ``match`` is called by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from batchformer.streams import leaves

REMEDY = (
    "These outputs hold two streams: {rows} rows for {half} samples, plain then mixed, because "
    "BatchFormer is attached and the model is training. Double the targets to go with them: "
    "loss = criterion(outputs, batchformer.match(outputs, targets))."
)


class TwoStreamTensor(Tensor):
    """Logits ``(2N, ...)`` of an attached model in training; a plain tensor in all but one thing.

    An operation that fails because the other operand has N rows says what to do about it.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, ValueError, IndexError) as error:
                tensors = [t for _, t in leaves((args, tuple(kwargs.values()))) if _has_rows(t)]
                rows = {t.shape[0] for t in tensors if isinstance(t, cls)}
                halves = {t.shape[0] for t in tensors if 2 * t.shape[0] in rows}
                if not halves:
                    raise
                half = halves.pop()
                remedy = REMEDY.format(rows=2 * half, half=half)
                kind = ValueError if isinstance(error, ValueError) else RuntimeError
                raise kind(f"{error}\n{remedy}") from error
            # What keeps the rows and a gradient keeps the memory. The rest is an ordinary tensor
            # again: a scalar loss, detached predictions, and attributes, which compilers read.
            attribute = getattr(func, "__name__", "") == "__get__"
            if _has_rows(result) and result.requires_grad and not attribute:
                rows = {t.shape[0] for t in args if isinstance(t, cls) and t.ndim}
                if result.shape[0] in rows and not isinstance(result, cls):
                    return result.as_subclass(cls)
            return result


def remember(outputs: Any) -> Any:
    """Mark doubled rows that await a loss; anything else, and anything compiled, passes through."""
    compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    if compiled or not _has_rows(outputs) or not outputs.requires_grad:
        return outputs
    return outputs.as_subclass(TwoStreamTensor)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0
