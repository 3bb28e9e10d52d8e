"""Look at a model without leaving a trace: modes, buffers, flags and random states come back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore, bit for bit, whatever running the model inside the block changes.

    Covers the training mode of every module, the values of every buffer, the ``requires_grad`` of
    every parameter, and the random states of Python, the CPU and the model's devices.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    python_state = random.getstate()
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = [device for device in devices if device.type == "cuda"]
    try:
        with torch.random.fork_rng(devices=accelerators):
            yield
    finally:
        random.setstate(python_state)
        model.train()  # what some modules compute for eval and keep, they drop here
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                # A module may have replaced the tensor rather than written into it.
                module._buffers[name] = buffer
                if not _is_expanded(buffer):
                    buffer.copy_(value)


def _is_expanded(buffer: Tensor) -> bool:
    """Whether several elements are one in memory, which nothing can write to."""
    if buffer.layout is not torch.strided:
        return False
    return any(
        step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True)
    )
