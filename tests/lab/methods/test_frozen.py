"""Features of an earlier run stay as they are, in eval unless told otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep

METHODS = ["crt", "lws", "balms"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_features_change_only_by_statistics_and_only_if_asked(
    make: Any, batch: Any, name: str, mode: str
) -> None:
    method = make(name, {"frozen_mode": mode})
    method.train()
    before = {k: v.clone() for k, v in method.network.state_dict().items()}
    optimizers = method.optimizers(OptimConfig(lr=0.5))
    method.update(batch, optimizers, OptimizerStep(TrainConfig(), torch.device("cpu")))
    changed = {k for k, v in method.network.state_dict().items() if not torch.equal(v, before[k])}
    statistics = {k for k in before if "running" in k or "num_batches" in k}
    head = {"fc.scale"} if name == "lws" else {"fc.weight", "fc.bias"}
    assert changed == (head | statistics if mode == "train" else head)


@pytest.mark.parametrize("name", METHODS)
def test_modes(make: Any, name: str) -> None:
    method = make(name)
    assert not method.train().network.training and method.encoder.training
    assert not method.eval().encoder.training
    as_released = make(name, {"frozen_mode": "train"})
    assert as_released.train().network.bn1.training
    assert not as_released.eval().network.bn1.training


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("module", [{}, {"enabled": False}, {"streams": "mixed_only"}], ids=str)
def test_trained_once(
    make: Any, batch: Any, name: str, module: Any, assert_trained_once: Any
) -> None:
    assert_trained_once(make(name, **module), batch)


@pytest.mark.parametrize("name", [*METHODS, "tau_norm"])
def test_resumed_equals_unbroken(make: Any, assert_resumes: Any, name: str) -> None:
    assert_resumes(lambda: make(name))


@pytest.mark.parametrize("name", [*METHODS, "tau_norm"])
def test_prediction_is_the_network_alone(make: Any, batch: Any, name: str) -> None:
    method, without = make(name).eval(), make(name, enabled=False).eval()
    x = batch["x"]
    assert torch.equal(method.predict(x), method.network(x))
    assert torch.equal(method.predict(x), without.predict(x))
