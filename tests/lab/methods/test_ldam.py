"""LDAM against the loss composed by hand, its head, and when weights begin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.methods.ldam import reweighting_warning
from batchformer.lab.models.heads import CosineClassifier

COUNTS = torch.tensor([50.0, 20.0, 10.0, 5.0, 1.0])


def in_eval_norms(method: Any) -> Any:
    for module in method.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    return method


@pytest.mark.parametrize("reweighted", [False, True])
def test_the_loss_of_both_streams_by_hand(make: Any, batch: Any, reweighted: bool) -> None:
    method = in_eval_norms(make("ldam", {"reweight_epoch": 3}, dropout=0.0))
    method.begin_epoch(3 if reweighted else 2)
    features = method.network.forward_features(batch["x"])
    rows = torch.cat((features, method.encoder.mix(features)))
    cosines = F.normalize(rows) @ F.normalize(method.network.fc.weight).T
    y = batch["y"].repeat(2)
    margins = 0.5 * (1 / COUNTS) ** 0.25
    lowered = cosines - F.one_hot(y, 5) * margins
    effective = (1 - 0.9999 ** COUNTS.double()) / (1 - 0.9999)
    weights = (1 / effective) * 5 / (1 / effective).sum()
    losses = F.cross_entropy(30 * lowered, y, reduction="none").double()
    w = weights[y] if reweighted else torch.ones(20)
    expected = (w * losses).sum() / w.sum()
    torch.testing.assert_close(method.step(batch)["loss"].double(), expected, rtol=1e-6, atol=0)


def test_weights_begin_at_their_epoch_and_are_a_phase(make: Any) -> None:
    method = make("ldam", {"reweight_epoch": 160})
    phases = []
    for epoch in (0, 159, 160, 199, 0):
        method.begin_epoch(epoch)
        phases.append(method.phase())
    assert phases == [False, False, True, True, False]


def test_the_head_is_a_cosine_one_and_the_prediction_plain(make: Any, batch: Any) -> None:
    with_module, without = make("ldam").eval(), make("ldam", enabled=False).eval()
    assert isinstance(with_module.network.fc, CosineClassifier)
    assert torch.equal(with_module.predict(batch["x"]), without.predict(batch["x"]))
    assert torch.equal(with_module.predict(batch["x"]), with_module.network(batch["x"]))
    assert with_module.predict(batch["x"]).abs().max() <= 30.001


def test_margin_and_scale_are_settings(make: Any, batch: Any) -> None:
    method = in_eval_norms(make("ldam", {"margin": 0.0, "scale": 2.0}, enabled=False))
    logits = method.network(batch["x"])
    assert logits.abs().max() <= 2.001
    torch.testing.assert_close(
        method.step(batch)["loss"], F.cross_entropy(logits, batch["y"]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("method", "epochs", "said"),
    [
        ("ldam", 3, "epoch 5, and this training has 3"),
        ("ride", 5, "has 5"),  # epochs count from 0: the last is 4
        ("ldam", 5.1, ""),
        ("ride", 200, ""),
        ("cross_entropy", 3, ""),
    ],
)
def test_a_training_that_ends_before_it_is_told(method: str, epochs: float, said: str) -> None:
    words = reweighting_warning(method, MethodConfig(reweight_epoch=5), epochs)
    assert (said in words) if said else words == ""
