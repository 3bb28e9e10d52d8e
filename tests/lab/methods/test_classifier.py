"""The classifier with two streams against the computation written out; its head and encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from batchformer import check
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.methods.classifier import classifier_of, make_encoder
from batchformer.lab.models.build import build_model
from batchformer.lab.models.heads import CosineClassifier, WithFeatureLayer, replace_classifier

COUNTS = torch.tensor([50, 20, 10, 5, 1])


@pytest.mark.parametrize(
    ("name", "shift"), [("cross_entropy", 0.0), ("crt", 0.0), ("balanced_softmax", COUNTS.log())]
)
def test_the_loss_is_the_mean_over_both_streams(
    make: Any, batch: Any, quiet: Any, name: str, shift: Any
) -> None:
    method = quiet(make(name, dropout=0.0))
    features = method.network.forward_features(batch["x"])
    logits = method.network.fc(torch.cat((features, method.encoder.mix(features))))
    expected = F.cross_entropy(logits + shift, batch["y"].repeat(2))
    torch.testing.assert_close(method.step(batch)["loss"], expected)


def test_the_variants_of_the_loss(make: Any, batch: Any, quiet: Any) -> None:
    def loss(**module: Any) -> Any:
        return quiet(make("cross_entropy", dropout=0.0, **module)).step(batch)["loss"].item()

    assert loss(loss_scale="official") == pytest.approx(3 * loss(), rel=1e-5)
    assert loss(loss_scale="sum") == pytest.approx(2 * loss(), rel=1e-5)
    assert loss(mixed_weight=0.0) == pytest.approx(loss(enabled=False), rel=1e-5)
    halves = loss(enabled=False) + loss(streams="mixed_only")
    assert loss(loss_scale="sum") == pytest.approx(halves, rel=1e-5)


def test_the_modules_rate_is_its_own(make: Any) -> None:
    groups = make("cross_entropy", lr_factor=0.2).parameter_groups(OptimConfig(lr=0.5))
    assert [(g["name"], g["lr"]) for g in groups] == [("model", 0.5), ("batchformer", 0.1)]


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
def test_dropout_of_features_is_in_training_and_of_each_row(make: Any, streams: str) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    method = make("cross_entropy", {"feature_dropout": 0.25}, dropout=0.0, **module)
    plain = make("cross_entropy", dropout=0.0, **module)
    torch.manual_seed(0)
    features = torch.rand(400, 64) + 0.5
    rows, whole = method.streams(features), plain.streams(features)
    assert len(rows) == (800 if streams == "shared" else 400)
    kept = rows != 0
    torch.testing.assert_close(rows[kept], (whole / 0.75)[kept])
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.01)
    if streams == "shared":
        assert not torch.equal(*kept.chunk(2))
    assert torch.equal(method.eval().streams(features), features)


@pytest.mark.parametrize("name", ["cross_entropy", "balanced_softmax"])
def test_normalised_features_in_training_and_at_test(make: Any, batch: Any, name: str) -> None:
    method, plain = make(name, {"feature_norm": True}, enabled=False), make(name, enabled=False)
    features = plain.features(batch["x"])
    rows = features - features.mean(1, keepdim=True)
    rows = rows / (rows.square().mean(1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(method(batch["x"]), plain.classify(rows))
    for one in (method, plain):
        one.eval()
    features = plain.features(batch["x"])
    rows = F.layer_norm(features, features.shape[1:])
    torch.testing.assert_close(method.predict(batch["x"]), plain.classify(rows))
    assert not method.network.state_dict().keys() >= plain.network.state_dict().keys()


def test_prediction_drops_no_feature(make: Any, batch: Any) -> None:
    method, plain = make("cross_entropy", {"feature_dropout": 0.5}), make("cross_entropy")
    for one in (method, plain):
        one.train().network.eval()
    assert torch.equal(method.predict(batch["x"]), plain.predict(batch["x"]))
    assert check(method, batch["x"]).passed
    assert list(method.state_dict()) == list(plain.state_dict())


def test_without_dropout_nothing_is_drawn(make: Any, batch: Any) -> None:
    method = make("cross_entropy", dropout=0.0)
    before = torch.get_rng_state()
    method.step(batch)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_small_patch16_224"])
def test_transformers_are_classified_by_timms_own_path(make: Any, name: str) -> None:
    """BatchFormer stands between the class token, after the last normalisation, and the head."""
    torch.manual_seed(0)
    network: Any = build_model(name, 5, img_size=32)
    built = make("cross_entropy", options={"network": network}, dropout=0.0)
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        built.eval()
        logits = network(x)
        token = network.forward_features(x)[:, 0]
        assert torch.equal(built.predict(x), logits) and torch.equal(built(x), logits)
        assert torch.equal(built.features(x), network.fc_norm(token))
        built.train()
        both = built(x)
        torch.testing.assert_close(both[:4], logits)
        mixed = network.head(built.encoder(built.features(x)))
        torch.testing.assert_close(both[4:], mixed)
    assert check(built, x).passed


@pytest.mark.parametrize("layer", [0, 6])
def test_the_head_of_a_network_may_widen_its_features(make: Any, layer: int) -> None:
    """As in MobileNetV3: the encoder, or a layer before it, has the channels after the head."""
    network: Any = build_model("mobilenetv3_small_050", 5)
    network = WithFeatureLayer(network, layer) if layer else network
    method = make("cross_entropy", options={"network": network}, heads=2)
    assert method.encoder.dim == network.get_classifier().in_features == (layer or 1024)
    assert method.train()(torch.randn(4, 3, 32, 32)).shape == (8, 5)


@pytest.mark.parametrize(
    "name", ["resnet32", "digits_net", "convnext_atto", "vit_tiny_patch16_224"]
)
def test_a_replaced_classifier_is_the_one_in_use(name: str) -> None:
    network = build_model(name, 3)
    head = nn.Linear(network.num_features, 7)  # type: ignore[arg-type]
    replace_classifier(network, head)
    assert network.get_classifier() is head  # type: ignore[operator]


def test_a_classifier_of_maps_is_refused_where_one_is_needed(make: Any) -> None:
    options = {"network": build_model("dla46_c", 5)}
    for name in ("cross_entropy", "ldam"):
        with pytest.raises(ValueError, match=r"DLA classifies maps by a convolution.*--model"):
            make(name, options=options)
    assert make("knn", options=options).encoder is None
    layered = {"network": WithFeatureLayer(build_model("dla46_c", 5), 6)}  # it has its own
    method = make("cross_entropy", options=layered, heads=2).train()
    assert method(torch.randn(4, 3, 64, 64)).shape == (8, 5)


def test_another_kind_of_classifier_is_named() -> None:
    network = build_model("digits_net", 3)
    replace_classifier(network, CosineClassifier(64, 3))
    with pytest.raises(ValueError, match="has CosineClassifier"):
        classifier_of(network)


def test_settings_reach_the_encoder() -> None:
    module = ModuleConfig(heads=2, layers=3, dropout=0.1, attend="self", trained=False)
    encoder = make_encoder(8, module, seed=0, batch_axis=1)
    assert encoder is not None
    assert (encoder.heads, len(encoder.layers), encoder.dropout) == (2, 3, 0.1)
    assert (encoder.attend, encoder.batch_axis, encoder.dim) == ("self", 1, 8)
    assert not any(p.requires_grad for p in encoder.parameters())
    assert make_encoder(8, ModuleConfig(enabled=False), seed=0) is None


def test_layers_may_start_as_copies() -> None:
    """The first layer is the same either way, so that one layer is no other encoder."""
    own, copies = (
        make_encoder(8, ModuleConfig(layers=3, copy_layers=copied), seed=0)
        for copied in (False, True)
    )
    assert own is not None and copies is not None
    weights = [[layer.linear1.weight for layer in e.layers] for e in (own, copies)]
    assert torch.equal(weights[0][0], weights[1][0])
    assert not torch.equal(*weights[0][:2]) and torch.equal(*weights[1][:2])


def test_weights_are_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make_encoder(8, ModuleConfig(), seed=0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    same, other = make_encoder(8, ModuleConfig(), seed=0), make_encoder(8, ModuleConfig(), seed=1)
    weights = [e.layers[0].linear1.weight for e in (one, same, other)]  # type: ignore[union-attr]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
