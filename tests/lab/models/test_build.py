"""Networks by name."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.models.build import EXPERTS, OWN, build_model, models_with_weights


@pytest.mark.parametrize("name", [*OWN, "resnet18"])
def test_every_network_keeps_the_contract(name: str) -> None:
    model = build_model(name, 7)
    shape = {"digits_net": (1, 8, 8), "digits16_net": (1, 16, 16)}.get(name, (3, 32, 32))
    x = torch.randn(2, *shape)
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    assert features.shape == (2, model.num_features)
    model.eval()
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    torch.testing.assert_close(model.get_classifier()(features), model(x))
    assert model(x).shape == (2, 7)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no model 'resnet_32'.*resnet32"):
        build_model("resnet_32", 7)


@pytest.mark.parametrize("name", EXPERTS)
def test_every_network_of_experts_keeps_its_contract(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, 7, experts=2).eval()
        features = model.expert_features(torch.empty(3, 3, 64, 64))
        assert features.shape == (2, 3, model.num_features)
        assert model.classify(features[1], 1).shape == (3, 7)
        assert model(torch.empty(3, 3, 64, 64)).shape == (3, 7)


def test_options_reach_the_networks_of_timm() -> None:
    model = build_model("resnet18", 7, zero_init_last=False)
    assert (model.layer1[0].bn2.weight == 1).all()


@pytest.mark.parametrize("name", ["resnet26", "resnet10", "digits_net"])
def test_weights_tell_their_network(name: str) -> None:
    weights = build_model(name, 3).state_dict()
    assert models_with_weights(weights, like="resnet18.a1_in1k") == [name]
    assert models_with_weights({**weights, "conv1.weight": torch.zeros(1)}, like="resnet18") == []
