"""Write an attached model's weights as a file for the plain model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from batchformer.insight.files import atomic_file
from batchformer.plug.export import export


def write_plain(model: nn.Module, path: str | os.PathLike[str], example: Any = None) -> Path:
    """Save the state dict of ``export(model, example)`` on the CPU, completely or not at all.

    The file contains only tensors: ``plain.load_state_dict(torch.load(path, weights_only=True))``.
    """
    path = Path(path)
    state = {key: value.cpu() for key, value in export(model, example).state_dict().items()}
    with atomic_file(path) as file:
        torch.save(state, file)
    return path
