"""The defaults of the contract."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from batchformer import BatchFormer
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep


class Small(Method):
    module_lr_factor = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.encoder = nn.Linear(4, 4), BatchFormer(4)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.encoder(self.layer(batch["x"])).square().mean()}


def test_every_parameter_is_in_one_group_with_its_rate() -> None:
    method = Small()
    optimizer = method.optimizers(OptimConfig(lr=0.5))["main"]
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in method.parameters())
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.05])


def test_the_default_update_is_one_step() -> None:
    method = Small()
    before = method.layer.weight.clone()
    optimizers = method.optimizers(OptimConfig())
    optimizer_step = OptimizerStep(TrainConfig(), torch.device("cpu"))
    losses = method.update({"x": torch.randn(3, 4)}, optimizers, optimizer_step)
    assert losses["loss"] > 0 and not torch.equal(method.layer.weight, before)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"Method does not implement step"):
        Method().step({})
    with pytest.raises(NotImplementedError, match=r"Small does not implement predict"):
        Small().predict(torch.zeros(1))


def test_a_method_has_nothing_to_remark_unless_it_says_so() -> None:
    assert Small().remarks() == {}
