"""LWS learns one factor for each class, and nothing else."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from batchformer.lab.config.training import OptimConfig


def test_it_begins_as_the_network_was(make: Any, batch: Any) -> None:
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


def test_only_factors_and_the_encoder_are_trained(make: Any) -> None:
    groups = make("lws").parameter_groups(OptimConfig())
    assert [g["name"] for g in groups] == ["model", "batchformer"]
    assert [p.shape for p in groups[0]["params"]] == [(5,)]
