"""Wrappers are taken off, or refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from batchformer import attach
from batchformer.plug.classifier import AttachError
from batchformer.plug.insertion import unwrap


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fc = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stem(x))


def test_wrappers_are_taken_off_however_many() -> None:
    model = Net()
    assert unwrap(model) is model
    assert unwrap(nn.DataParallel(model)) is model
    assert unwrap(torch.compile(nn.DataParallel(model), backend="eager")) is model
    assert isinstance(unwrap(AveragedModel(model)), Net)


def test_a_scheduler_built_before_is_refused_and_the_model_is_as_it_was() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with pytest.raises(AttachError, match="then build the scheduler"):
        attach(model, optimizer=optimizer)
    assert type(model.fc) is nn.Linear and len(optimizer.param_groups) == 1


def test_ddp_and_fsdp_are_refused_with_what_to_do(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(Net())
        with pytest.raises(AttachError, match="wrap it afterwards"):
            attach(wrapped)
        sharded = fully_shard(Net(), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(AttachError, match="Attach first, then shard"):
            attach(sharded)
    finally:
        distributed.destroy_process_group()
