"""Classifiers on frozen features: cRT, LWS and tau-normalisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batchformer.lab.config.training import OptimConfig

METHODS = ["crt", "lws", "balms"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_features_change_only_by_statistics_and_only_if_asked(
    make: Any, batch: Any, update: Any, name: str, mode: str
) -> None:
    method = make(name, {"frozen_mode": mode})
    before = {k: v.clone() for k, v in method.network.state_dict().items()}
    update(method, batch, OptimConfig(lr=0.5))
    changed = {k for k, v in method.network.state_dict().items() if not torch.equal(v, before[k])}
    statistics = {k for k in before if "running" in k or "num_batches" in k}
    head = {"fc.scale"} if name == "lws" else {"fc.weight", "fc.bias"}
    assert changed == (head | statistics if mode == "train" else head)


def test_the_classifier_is_new_and_of_the_seed(make: Any) -> None:
    old, one = make("cross_entropy").network, make("crt", options={"seed": 1}, enabled=False)
    same, other = make("crt", options={"seed": 1}), make("crt", options={"seed": 2})
    assert torch.equal(one.network.conv1.weight, old.conv1.weight)
    weights = [method.network.fc.weight for method in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], old.fc.weight)


def test_lws_begins_as_the_network_was(make: Any, batch: Any) -> None:
    plain, scaled = make("cross_entropy", enabled=False).eval(), make("lws").eval()
    assert torch.equal(scaled.predict(batch["x"]), plain.predict(batch["x"]))


def test_factors_multiply_their_classes_logits(make: Any, batch: Any) -> None:
    method = make("lws", enabled=False).train()
    factors = torch.tensor([1.0, 2.0, 0.5, -1.0, 0.0])
    method.network.fc.scale.data.copy_(factors)
    features = method.network.forward_features(batch["x"])
    own = method.network.fc.classifier
    logits = (features @ own.weight.T + own.bias) * factors
    torch.testing.assert_close(method.eval().predict(batch["x"]), logits)
    method.train()
    torch.testing.assert_close(method.step(batch)["loss"], F.cross_entropy(logits, batch["y"]))


def test_the_answer_is_that_of_the_normalised_network(make: Any, batch: Any) -> None:
    network = make("cross_entropy").network.eval()
    weight = network.fc.weight
    features = network.forward_features(batch["x"])
    expected = features @ (weight / weight.norm(dim=1, keepdim=True).sqrt()).T
    method = make("tau_norm", {"tau": 0.5}).eval()
    torch.testing.assert_close(method.predict(batch["x"]), expected)
