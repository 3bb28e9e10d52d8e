"""Whether the Triton kernels can replace operations of torch.

The answer is the first reason why not, in words, or None if there is none. In that case the caller
runs the kernels; otherwise it runs the operations of torch.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor, nn

from batchformer.torch_private import constant_when_compiled, is_forward_mode, is_transformed

HALF = (torch.bfloat16, torch.float16)
#: Tensor cores with bfloat16 begin with this generation (Ampere).
MIN_CAPABILITY = (8, 0)

_disabled: ContextVar[bool] = ContextVar("batchformer_kernels_disabled", default=False)
_for_graphs: ContextVar[bool] = ContextVar("batchformer_kernels_for_graphs", default=False)


@contextmanager
def disabled() -> Iterator[None]:
    """Within it, forward passes run operations of torch only.

    >>> with disabled():
    ...     print(unsupported_reason(torch.zeros(1)))
    kernels are disabled
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


@contextmanager
def for_graphs() -> Iterator[None]:
    """Within it, forward passes are those of a CUDA graph, where launches cost the host nothing.

    Put both the updates that warm up and the capture into it, so that they run the same kernels.
    """
    token = _for_graphs.set(True)
    try:
        yield
    finally:
        _for_graphs.reset(token)


def launches_are_free() -> bool:
    """Whether the forward pass is one of :func:`for_graphs`."""
    return _for_graphs.get()


def unsupported_reason(x: Tensor, *others: Tensor) -> str | None:
    """Why no kernel can run on ``x`` and other tensors of its device now, or None.

    >>> unsupported_reason(torch.zeros(1))
    'the tensor is not on a CUDA device'
    """
    # Tracers and tensor subclasses come first: they cannot answer the other questions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return "the model is being compiled or traced"
    for tensor in (x, *others):
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"{type(tensor).__name__} is not a plain tensor"
    if _disabled.get():
        return "kernels are disabled"
    if is_transformed():
        return "a transform of torch.func is active"
    if is_forward_mode():
        return "forward-mode differentiation is active"
    if not (x.is_cuda and all(tensor.is_cuda for tensor in others)):
        return "the tensor is not on a CUDA device"
    return _missing(x.device)


@constant_when_compiled
def operators_work(device: torch.device) -> bool:
    """Whether operators made of kernels may stand in a graph that ``torch.compile`` makes.

    It asks once, while it traces: compiled code keeps the answer.
    """
    return device.type == "cuda" and not _disabled.get() and _missing(device) is None


@lru_cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the device; two on the CPU, where only Triton's interpreter runs."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def _missing(device: torch.device) -> str | None:
    if torch.version.hip is not None:
        return "the kernels support NVIDIA devices only"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the device is older than compute capability {}.{}".format(*MIN_CAPABILITY)
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    # Compilation also needs a C compiler and a writable cache: try it once.
    try:
        from batchformer.kernels.dropout import column_sums

        column_sums(torch.zeros(2, 1, device=device), torch.float32)
    except Exception as error:
        reason = f"Triton does not work here: {error}"
        warnings.warn(f"{reason}; training uses slower operations of torch", stacklevel=2)
        return reason
    return None
