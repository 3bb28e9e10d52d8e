from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from batchformer.lab.models.weights import as_file, read_stride, read_weights


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(memory_format=torch.channels_last)
    state = model.state_dict() | {"shared": model[0].weight, "turned": model[0].weight.T}
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(as_file(state, suffix))
    found = read_weights(file).tensors
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_where_bottlenecks_stride_is_said_where_the_format_can(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    state = nn.Linear(2, 2).state_dict()
    for stride in ("1x1", None):
        file.write_bytes(as_file(state, file.suffix, stride))  # type: ignore[arg-type]
        assert read_stride(file) == stride
