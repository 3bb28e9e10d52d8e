"""A linear probe: a new classifier on features that stay as they are, without BatchFormer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep

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
        method.update(
            batch, method.optimizers(OptimConfig(lr=0.5)), OptimizerStep(TrainConfig(), CPU)
        )
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


IMAGES = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(7))


def scaled(make: Any, times: float = 1.0) -> Any:
    """A probe of unit scale on features that are so many times as long."""
    options = {"training_features": lambda extract: extract(IMAGES)}
    method = make("linear_probe", {"probe_scale": "unit"}, options)
    with torch.no_grad():
        method.network.hidden.weight.mul_(times)
        method.network.hidden.bias.mul_(times)
    return method


def trained(method: Any, batch: Any, updates: int = 3) -> Any:
    method.train().begin_training(updates)
    optimizers = method.optimizers(OptimConfig(lr=0.5))
    for _ in range(updates):
        method.update(batch, optimizers, OptimizerStep(TrainConfig(), CPU))
    return method


def test_features_of_unit_scale(make: Any, batch: Any) -> None:
    method = scaled(make)
    method.begin_training(1)
    with torch.no_grad():
        features = method.network.forward_features(IMAGES)
        squares = [sum(float(value) ** 2 for value in row) for row in features]
        length = (sum(squares) / len(squares)) ** 0.5
        assert float(method.length) == pytest.approx(length) != pytest.approx(1)
        weight, bias = method.network.fc.weight, method.network.fc.bias
        wanted = method.network.forward_features(batch["x"]) / length @ weight.T + bias
        torch.testing.assert_close(method.predict(batch["x"]), wanted)
        torch.testing.assert_close(method.train()(batch["x"]), wanted)


def test_longer_features_are_probed_alike(make: Any, batch: Any) -> None:
    answers = [trained(scaled(make, times), batch).predict(batch["x"]) for times in (1.0, 64.0)]
    torch.testing.assert_close(*answers)
    plain = [make("linear_probe") for _ in range(2)]
    with torch.no_grad():
        plain[1].network.hidden.weight.mul_(64.0)
        plain[1].network.hidden.bias.mul_(64.0)
    own, longer = (trained(method, batch).predict(batch["x"]) for method in plain)
    assert not torch.allclose(own, longer, atol=0.1)


def test_the_exported_network_and_a_loaded_state_answer_alike(make: Any, batch: Any) -> None:
    method = trained(scaled(make), batch).eval()
    with torch.no_grad():
        answers = method.predict(batch["x"])
        torch.testing.assert_close(method.deployed()(batch["x"]), answers)
        again = scaled(make).eval()
        again.load_state_dict(method.state_dict())
        assert torch.equal(again.predict(batch["x"]), answers)
    assert method.deployed() is not method.network and "length" in method.state_dict()
    assert "length" not in make("linear_probe").state_dict(), "older runs go on"


def test_unit_scale_without_images_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="which this probe was not given"):
        make("linear_probe", {"probe_scale": "unit"}).begin_training(1)
    with pytest.raises(ValueError, match="all features of the training images are 0"):
        scaled(make, 0.0).begin_training(1)


def test_a_scaled_probe_resumes(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: scaled(make))
