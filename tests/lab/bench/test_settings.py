"""What a table says of where it was measured."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench.measure import BenchSettings, processor_name


def test_the_environment_names_everything_but_the_date() -> None:
    found = BenchSettings(torch.device("cpu")).environment(torch.float32)
    assert list(found) == ["machine", "device", "threads", "torch", "dtype"]
    assert found["dtype"] == "float32" and found["torch"] == torch.__version__
    assert found["threads"] == str(torch.get_num_threads()) and processor_name() in found["machine"]


def test_layers_are_measured_in_the_type_of_the_device() -> None:
    assert BenchSettings(torch.device("cpu")).layer_dtype == torch.float32
    assert BenchSettings(torch.device("cuda")).layer_dtype == torch.bfloat16
    BenchSettings(torch.device("cuda")).need_gpu("profile")
    with pytest.raises(RuntimeError, match="profile needs a CUDA device, and this is cpu"):
        BenchSettings(torch.device("cpu")).need_gpu("profile")
