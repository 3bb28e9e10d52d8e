"""Networks by name, and training a part of one."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.models.build import (
    EXPERTS,
    OWN,
    build_model,
    models_with_weights,
    train_last_block,
)
from batchformer.lab.models.heads import feature_width


@pytest.mark.parametrize("name", [*OWN, "resnet18", "mobilenetv3_small_050"])
def test_every_network_keeps_the_contract(name: str) -> None:
    model = build_model(name, 7)
    shape = {"digits_net": (1, 8, 8), "digits16_net": (1, 16, 16)}.get(name, (3, 32, 32))
    x = torch.randn(2, *shape)
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    assert features.shape == (2, feature_width(model))
    model.eval()
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    torch.testing.assert_close(model.get_classifier()(features), model(x))
    assert model(x).shape == (2, 7)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no model 'resnet_32'.*resnet32"):
        build_model("resnet_32", 7)


@pytest.mark.parametrize(
    "name", ["deit_tiny_distilled_patch16_224", "crossvit_tiny_240", "volo_d1_224"]
)
def test_networks_of_several_classifiers_are_refused(name: str) -> None:
    """VOLO adds the logits of its patches to those of its class token."""
    with torch.device("meta"), pytest.raises(ValueError, match=f"{name} has several classifiers"):
        build_model(name, 7)


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


@pytest.mark.parametrize("name", ["resnet26", "resnet10"])
def test_weights_tell_their_network(name: str) -> None:
    weights = build_model(name, 3).state_dict()
    assert models_with_weights(weights, like="resnet18.a1_in1k") == [name]


def test_a_tensor_of_another_shape_fits_no_network() -> None:
    weights = {**build_model("digits_net", 3).state_dict(), "conv1.weight": torch.zeros(1)}
    assert models_with_weights(weights, like="convnext_atto") == []


def test_convolutions_of_the_last_block_alone() -> None:
    network = build_model("resnet18", 3)
    train_last_block(network)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    convolutions = {name for name, p in network.named_parameters() if p.ndim == 4}
    assert trained & convolutions == {"layer4.1.conv1.weight", "layer4.1.conv2.weight"}
    others = {name for name, _ in network.named_parameters()} - convolutions
    assert others <= trained and {"bn1.weight", "fc.weight"} <= others


def test_networks_without_such_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="ResNetCifar has none"):
        train_last_block(build_model("resnet32", 3))
