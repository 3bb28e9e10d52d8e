"""Whether the Triton kernels can replace operations of torch.

The answer is the first reason why they cannot, in words, or None if there is none. With None the
caller runs the kernels; otherwise it runs the operations of torch.
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

#: Torch 2.6 cannot say whether it exports a model.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
_disabled: ContextVar[bool] = ContextVar("batchformer_kernels_disabled", default=False)


@contextmanager
def disabled() -> Iterator[None]:
    """Within the block, forward passes run operations of torch only.

    >>> with disabled():
    ...     print(unsupported_reason(torch.zeros(1)))
    kernels are disabled
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def unsupported_reason(x: Tensor) -> str | None:
    """Why no kernel can run on ``x`` now, or None.

    >>> unsupported_reason(torch.zeros(1))
    'the tensor is not on a CUDA device'
    """
    # Tracers and tensor subclasses come first: they cannot answer the other questions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return "the model is being compiled or traced"
    if type(x) not in (Tensor, nn.Parameter):
        return f"{type(x).__name__} is not a plain tensor"
    if _disabled.get():
        return "kernels are disabled"
    if is_transformed():
        return "a transform of torch.func is active"
    if is_forward_mode():
        return "forward-mode differentiation is active"
    if not x.is_cuda:
        return "the tensor is not on a CUDA device"
    return _missing(x.device)


@constant_when_compiled
def operators_work(device: torch.device) -> bool:
    """Whether operators made of kernels may stand in a graph that ``torch.compile`` makes.

    ``torch.compile`` calls this function once, while it traces, and compiled code keeps the answer.
    An exported program gets no operators, because it would need this library wherever it is loaded.
    ``is_exporting`` must be asked here: code that torch 2.11 traces always reads True from it.
    """
    if device.type != "cuda" or _disabled.get() or _is_exporting():
        return False
    return _missing(device) is None


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
        from batchformer.kernels.attention import output_times_gradient

        one = torch.zeros(1, 1, device=device)
        output_times_gradient(one, one, heads=1)
    except Exception as error:
        reason = f"Triton does not work here: {error}"
        warnings.warn(f"{reason}; training uses slower operations of torch", stacklevel=2)
        return reason
    return None
