"""MixStyle inside a method: where it stands, and that it is gone at test."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batchformer import check
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.models.domains import MixStyle

HYPER = {"mixstyle_after": ("layer1",), "mixstyle_p": 1.0, "mixstyle_alpha": 0.5}


def test_settings_reach_the_network(make: Any) -> None:
    method = make("mixstyle", HYPER, {"groups": 5})
    (module,) = (m for m in method.modules() if isinstance(m, MixStyle))
    assert module is method.network.layer1[-1]
    assert (module.p, module.alpha, module.groups) == (1.0, 0.5, 5)


def test_the_loss_by_hand(make: Any, batch: Any) -> None:
    method = make("mixstyle", HYPER, {"groups": 2}, dropout=0.0)
    for module in method.network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    torch.manual_seed(0)
    features = method.network.forward_features(batch["x"])
    torch.manual_seed(0)
    losses = method.step(batch)
    rows = torch.cat((features, method.encoder.mix(features)))
    expected = F.cross_entropy(method.network.fc(rows), batch["y"].repeat(2))
    assert set(losses) == {"loss"}
    torch.testing.assert_close(losses["loss"], expected)
    other = make("cross_entropy", dropout=0.0)
    other.network.eval()
    assert not torch.isclose(other.step(batch)["loss"], expected)


def test_both_arms_mix_alike(make: Any, batch: Any) -> None:
    features = []
    for enabled in (True, False):
        method = make("mixstyle", HYPER, {"groups": 2}, enabled=enabled)
        torch.manual_seed(3)
        features.append(method.features(batch["x"]))
    assert torch.equal(*features)


def test_state_is_that_of_cross_entropy(make: Any) -> None:
    own, plain = make("mixstyle", HYPER, {"groups": 2}), make("cross_entropy")
    assert list(own.state_dict()) == list(plain.state_dict())


def test_it_is_acting(make: Any, batch: Any) -> None:
    method = make("mixstyle", HYPER, {"groups": 2})
    assert check(method, batch["x"], method.optimizers(OptimConfig())["main"]).passed


def test_a_network_without_the_stages_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"no stage .* named layer2, layer3.*after layer1"):
        make("mixstyle", {}, {"groups": 2})


def test_resumed_equals_unbroken(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: make("mixstyle", HYPER, {"groups": 2}))
