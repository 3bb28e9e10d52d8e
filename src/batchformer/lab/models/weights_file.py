"""A state dict as the bytes of a file that other programs, and ``--weights``, read."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from torch import Tensor

from batchformer.lab.models.stride import Place
from batchformer.lab.models.weights import LAYOUTS

SAFETENSORS = ".safetensors"


def as_file(state: Mapping[str, Tensor], suffix: str, stride: Place | None = None) -> bytes:
    """The bytes of a .safetensors file, or of one of ``torch.save`` where the suffix is another.

    Args:
        state: names and tensors.
        suffix: of the file.
        stride: where bottlenecks stride, which a .safetensors file says in its metadata.
    """
    if suffix != SAFETENSORS:
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        return buffer.getvalue()
    try:
        from safetensors.torch import save
    except ImportError as error:
        needs = "a .safetensors file is written by safetensors: pip install 'batchformer[lab]'"
        raise ImportError(needs) from error
    layout = next((name for name, place in LAYOUTS.items() if place == stride), None)
    # Tensors that share memory, or do not fill theirs, are refused there.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    written: bytes = save(tensors, None if layout is None else {"layout": layout})
    return written
