"""Bytes that a computation needs beyond what it is given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most that the CUDA allocator holds during the work, beyond what it held before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def saved_bytes(forward: Callable[[], object], given: Iterable[Tensor]) -> int:
    """Bytes that a forward pass keeps for its backward pass, each storage counted once.

    Args:
        forward: the pass.
        given: tensors that exist anyway: inputs and parameters.

    >>> x = torch.randn(8, requires_grad=True)
    >>> saved_bytes(lambda: x.exp(), [x]), saved_bytes(lambda: x.square(), [x])
    (32, 0)
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # a storage that was freed could lend its address to another

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    del result
    return sum(sizes.values())


def release(device: torch.device) -> None:
    """Give back what nobody holds any more, so that one measurement does not crowd the next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
