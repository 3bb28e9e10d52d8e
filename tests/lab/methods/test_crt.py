"""cRT begins with a new classifier and trains it by cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.methods.two_stage import RetrainedClassifier
from batchformer.lab.models.build import build_model


def retrained(seed: int, enabled: bool = False) -> RetrainedClassifier:
    torch.manual_seed(0)
    network, counts = build_model("digits_net", 5), torch.ones(5)
    module = ModuleConfig(enabled=enabled)
    return RetrainedClassifier(network, counts, seed, module=module)


def test_the_classifier_is_new_and_of_the_seed() -> None:
    torch.manual_seed(0)
    old = build_model("digits_net", 5)
    one, same, other = retrained(1), retrained(1, enabled=True), retrained(2)
    assert torch.equal(one.network.conv1.weight, old.conv1.weight)  # type: ignore[union-attr]
    weights = [method.network.fc.weight for method in (one, same, other)]  # type: ignore[union-attr]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], old.fc.weight)  # type: ignore[arg-type]


def test_the_loss_of_both_streams_by_hand(make: Any, batch: Any) -> None:
    method = make("crt", dropout=0.0).train()
    features = method.network.forward_features(batch["x"])  # its normalisation is in eval
    logits = method.network.fc(torch.cat((features, method.encoder.mix(features))))
    expected = F.cross_entropy(logits, batch["y"].repeat(2))
    torch.testing.assert_close(method.step(batch)["loss"], expected)
