"""A linear probe: a new classifier on features that stay as they are, without BatchFormer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.engine.config import OptimConfig, TrainConfig
from batchformer.engine.mechanics import Mechanics

CPU = torch.device("cpu")
MODULES: list[dict[str, Any]] = [
    {},
    {"enabled": False},
    {"attend": "self"},
    {"trained": False},
    {"streams": "mixed_only"},
    {"loss_scale": "official", "mixed_weight": 0.5},
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_batchformer_whatever_the_module_says(make: Any, batch: Any, module: Any) -> None:
    method, baseline = make("linear_probe", **module), make("linear_probe", enabled=False)
    assert method.encoder is None
    state, wanted = method.state_dict(), baseline.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[key], wanted[key]) for key in state)
    losses = [one.train().step(batch)["loss"] for one in (method, baseline)]
    assert losses[0] == losses[1]


def test_the_classifier_begins_anew(make: Any) -> None:
    method = make("linear_probe")
    weight = method.network.fc.weight
    assert weight.std().item() == pytest.approx(0.01, rel=0.15) and abs(weight.mean()) < 0.002
    assert not method.network.fc.bias.any()
    assert torch.equal(weight, make("linear_probe").network.fc.weight)


def test_only_the_classifier_moves_and_statistics_do_not(make: Any, batch: Any) -> None:
    for mode in ("eval", "train"):  # frozen_mode is for other methods
        method = make("linear_probe", {"frozen_mode": mode}).train()
        assert not any(part.training for part in method.network.modules())
        before = {key: value.clone() for key, value in method.state_dict().items()}
        method.update(batch, method.optimizers(OptimConfig(lr=0.5)), Mechanics(TrainConfig(), CPU))
        after = method.state_dict()
        moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
        assert moved == {"network.fc.weight", "network.fc.bias"}


def test_the_first_loss_is_that_of_a_linear_classifier(make: Any, batch: Any) -> None:
    method = make("linear_probe").train()
    network = method.network
    with torch.no_grad():
        features = network.forward_features(batch["x"])
        logits = features @ network.fc.weight.T
        picked = logits.log_softmax(1).gather(1, batch["y"][:, None])
    torch.testing.assert_close(method.step(batch)["loss"], -picked.mean())


def test_trained_once(make: Any, batch: Any, assert_trained_once: Any) -> None:
    assert_trained_once(make("linear_probe"), batch)


def test_the_network_is_in_eval_from_the_beginning(make: Any) -> None:
    assert not any(part.training for part in make("linear_probe").network.modules())


def test_resumed_equals_unbroken(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: make("linear_probe"))
