"""When the convolution and normalisation kernels can replace torch's, and why not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from batchformer.kernels import available
from batchformer.torch_private import HOOKS

CONV_CHANNELS = (16, 32, 64)
MAX_NORM_CHANNELS = 1024
#: Pixels are counted in 32 bits; their values are addressed in 64.
MAX_PIXELS = 2**30


def conv_unsupported_reason(x: Tensor, conv: nn.Conv2d) -> str | None:
    """Why `conv3x3` cannot replace ``conv(x)``, or None. x is (N, C, H, W)."""
    if reason := available.unsupported_reason(x) or _module_unsupported_reason(conv, nn.Conv2d):
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
    # Without autocast torch refuses mixed types; let it raise its own error.
    autocast = torch.is_autocast_enabled(x.device.type)
    if not autocast and x.dtype != conv.weight.dtype:
        return "input and weight differ in type"
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return _layout_unsupported_reason(x, dtype)


def norm_unsupported_reason(
    y: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None = None
) -> str | None:
    """Why `batch_norm_relu` cannot replace ``relu(norm(y) + residual)``, or None.

    y and residual are (N, C, H, W).
    """
    if reason := available.unsupported_reason(y) or _module_unsupported_reason(
        norm, nn.BatchNorm2d
    ):
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
    return _layout_unsupported_reason(y, y.dtype)


def _module_unsupported_reason(module: nn.Module, kind: type[nn.Module]) -> str | None:
    """Why a kernel cannot replace a module, which it never calls, so hooks and subclasses count."""
    if type(module) is not kind:
        return f"{type(module).__name__} is not {kind.__name__} itself"
    if not module.training:
        return "the module is not in training"
    hooked = any(getattr(module, name) for name in HOOKS)
    return "the module has hooks" if hooked else None


def _layout_unsupported_reason(x: Tensor, dtype: torch.dtype) -> str | None:
    if dtype not in available.HALF:
        return f"{dtype} is not a half-precision type"
    if not x.is_contiguous(memory_format=torch.channels_last):
        return "the input is not channels-last"
    if x.numel() == 0 or x.numel() // x.shape[1] > MAX_PIXELS:
        return "no pixels or too many"
    return None
