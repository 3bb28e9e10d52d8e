"""Tau-normalisation by its formula; nothing is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.two_stage import tau_normalise
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import drawing


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_weights_are_divided_by_a_power_of_their_length(tau: float) -> None:
    classifier = nn.Linear(3, 4)
    before = classifier.weight.detach().clone()
    tau_normalise(classifier, tau)
    for row, old in zip(classifier.weight, before, strict=True):
        torch.testing.assert_close(row, old / float(old.square().sum()) ** (tau / 2))
    assert not classifier.bias.any()
    lengths = classifier.weight.norm(dim=1)
    torch.testing.assert_close(lengths, before.norm(dim=1) ** (1 - tau))


def test_the_answer_is_that_of_the_normalised_network(make: Any, batch: Any) -> None:
    with drawing(0, "weights"):  # as the fixture draws it
        network = build_model("digits_net", 5).eval()
    weight = network.fc.weight  # type: ignore[union-attr]
    features = network.forward_features(batch["x"])  # type: ignore[operator]
    expected = features @ (weight / weight.norm(dim=1, keepdim=True).sqrt()).T  # type: ignore[union-attr,operator]
    method = make("tau_norm", {"tau": 0.5}).eval()
    torch.testing.assert_close(method.predict(batch["x"]), expected)


def test_updates_change_nothing(make: Any, batch: Any) -> None:
    method = make("tau_norm").train()
    before = {k: v.clone() for k, v in method.state_dict().items()}
    optimizers = method.optimizers(OptimConfig())
    assert optimizers == {}
    losses = method.update(batch, optimizers, OptimizerStep(TrainConfig(), torch.device("cpu")))
    assert losses["loss"].isfinite() and not losses["loss"].requires_grad
    assert all(torch.equal(v, before[k]) for k, v in method.state_dict().items())
