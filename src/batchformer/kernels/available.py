"""Where the Triton kernels can stand in for the operations of torch, and where they cannot.

Each question is answered by the first obstacle, in words, or by None where there is none: the
caller then takes the kernels, and in every other case the operations of torch.
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
from torch.autograd import forward_ad

HALF = (torch.bfloat16, torch.float16)
CONV_CHANNELS = (16, 32, 64)
MAX_NORM_CHANNELS = 1024
#: Pixels are counted in 32 bits; what they hold is addressed in 64.
MAX_PIXELS = 2**30
#: Tensor cores with bfloat16 begin with this generation (Ampere).
MIN_CAPABILITY = (8, 0)

_disabled: ContextVar[bool] = ContextVar("batchformer_kernels_disabled", default=False)


@contextmanager
def disabled() -> Iterator[None]:
    """Within it, forward passes use the operations of torch alone.

    >>> with disabled():
    ...     print(obstacle(torch.zeros(1)))
    kernels are disabled
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def obstacle(x: Tensor) -> str | None:
    """Why no kernel can work on `x` here and now, or None.

    >>> obstacle(torch.zeros(1))
    'the tensor is not on a CUDA device'
    """
    # First what makes the questions after it unanswerable: tracers and stand-ins for tensors.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return "the model is being compiled or traced"
    if type(x) not in (Tensor, nn.Parameter):
        return f"{type(x).__name__} is not a plain tensor"
    if _disabled.get():
        return "kernels are disabled"
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if not x.is_cuda:
        return "the tensor is not on a CUDA device"
    return _missing(x.device)


def conv_obstacle(x: Tensor, conv: nn.Conv2d) -> str | None:
    """Why `conv3x3` cannot stand in for ``conv(x)``, or None. x is (N, C, H, W)."""
    if reason := obstacle(x) or _module_obstacle(conv, nn.Conv2d):
        return reason
    if conv.kernel_size != (3, 3) or conv.stride != (1, 1) or conv.dilation != (1, 1):
        return "the convolution is not 3x3 with stride 1"
    if conv.padding not in ((1, 1), "same") or conv.padding_mode != "zeros":
        return "the convolution does not pad one pixel of zeros"
    if conv.bias is not None or conv.groups != 1:
        return "the convolution has a bias or groups"
    if conv.in_channels not in CONV_CHANNELS or conv.out_channels not in CONV_CHANNELS:
        return f"channels other than {', '.join(map(str, CONV_CHANNELS))}"
    if x.dim() != 4 or x.shape[1] != conv.in_channels:
        return "the input is not (N, in_channels, H, W)"
    # Without autocast torch refuses mixed types, and its error is the one to see.
    autocast = torch.is_autocast_enabled(x.device.type)
    if not autocast and x.dtype != conv.weight.dtype:
        return "input and weight differ in type"
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return _layout_obstacle(x, dtype)


def norm_obstacle(y: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None = None) -> str | None:
    """Why `batch_norm_relu` cannot stand in for ``relu(norm(y) + residual)``, or None.

    y and residual are (N, C, H, W).
    """
    if reason := obstacle(y) or _module_obstacle(norm, nn.BatchNorm2d):
        return reason
    if not norm.affine or norm.running_mean is None or norm.num_batches_tracked is None:
        return "the normalisation is not affine or does not track statistics"
    if norm.momentum is None:
        return "the normalisation averages its statistics without momentum"
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if any(s is None or s.dtype != torch.float32 or not s.is_contiguous() for s in state):
        return "parameters or statistics are not contiguous float32"
    if y.dim() != 4 or y.shape[1] != norm.num_features or y.numel() <= y.shape[1]:
        return "the input is not (N, num_features, H, W) with more than one value per channel"
    if norm.num_features > MAX_NORM_CHANNELS:
        return f"more than {MAX_NORM_CHANNELS} channels"
    if residual is not None and (residual.shape != y.shape or residual.dtype != y.dtype):
        return "the residual differs from the input in shape or type"
    return _layout_obstacle(y, y.dtype)


@lru_cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the device; on the CPU, where only Triton's interpreter runs, two."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def _missing(device: torch.device) -> str | None:
    if torch.version.hip is not None:
        return "the kernels are made for NVIDIA's devices"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the device is older than compute capability {}.{}".format(*MIN_CAPABILITY)
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    # Compilation needs more than the package (a C compiler, a cache it may write): try it once.
    try:
        from batchformer.lab.models.kernels.batch_norm import merge_sums

        merge_sums(torch.zeros(2, 1, 1, device=device))
    except Exception as error:
        reason = f"Triton does not work here: {error}"
        warnings.warn(f"{reason}; training takes the slower operations of torch", stacklevel=2)
        return reason
    return None


def _module_obstacle(module: nn.Module, kind: type[nn.Module]) -> str | None:
    """A kernel takes the module's parameters and never calls it: it must be what it seems."""
    if type(module) is not kind:
        return f"{type(module).__name__} is not {kind.__name__} itself"
    if not module.training:
        return "the module is not in training"
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return "the module has hooks" if any(hooks) else None


def _layout_obstacle(x: Tensor, dtype: torch.dtype) -> str | None:
    if dtype not in HALF:
        return f"{dtype} is not a half-precision type"
    if not x.is_contiguous(memory_format=torch.channels_last):
        return "the input is not channels-last"
    if x.numel() == 0 or x.numel() // x.shape[1] > MAX_PIXELS:
        return "no pixels or too many"
    return None
