"""Encoders over samples in every layout and of every method, and one row of a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.insight.gradient import batch_influence
from batchformer.insight.relations import Relations, one_row
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.lab.models.ride import ride_resnet32
from batchformer.nn.attention import Attend
from batchformer.nn.encoder import EncoderWeights
from batchformer.nn.module import BatchFormer

COUNTS = torch.tensor([50, 20, 10, 5, 1])


def around(encoder: BatchFormer | None) -> Relations:
    def fails(*_: Tensor) -> Tensor:
        raise AssertionError("not asked for")

    return Relations(nn.Identity(), fails, fails, fails, encoder)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5, 8), {}),
        ((5, 3, 8), {"batch_axis": 1}),
        ((5, 3, 8), {}),
        ((5, 8, 2, 3), {}),
        ((5, 2, 3, 8), {"channel_axis": -1}),
        ((5, 8), {"bottleneck": 4}),
        ((5, 8, 2, 3), {"bottleneck": 4}),
        ((5, 2, 8), {"batch_axis": 1, "channel_axis": 2}),
        ((5, 8, 2), {"batch_axis": 1, "channel_axis": 0}),
    ],
)
def test_mixing_is_that_of_the_encoder_in_any_layout(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    encoder = BatchFormer(8, heads=2, layers=2, **options).double()
    copies = torch.randn(3, *shape, dtype=torch.float64)
    relations, axis = around(encoder), encoder.batch_axis
    rows = torch.tensor([0, 4, 2])
    mixed = relations.mix_rows(copies, rows)
    for copy, row, other in zip(copies, rows, mixed, strict=True):
        expected, weights = encoder.mix(copy.movedim(0, axis), return_weights=True)
        got, attention = relations.mix(copy)
        torch.testing.assert_close(got, expected.movedim(axis, 0))
        torch.testing.assert_close(other, got[row])
        torch.testing.assert_close(attention, weights.flatten(0, 1).mean(0))
        assert attention.shape == (2, 5, 5)
        torch.testing.assert_close(attention.sum(2), torch.ones(2, 5, dtype=torch.float64))


def test_a_baseline_has_nothing_to_mix() -> None:
    with pytest.raises(ValueError, match="baseline"):
        around(None).mix(torch.zeros(2, 8))


def method_named(name: str, **module: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ride = name.startswith("ride")
        network: Any = (
            ride_resnet32(5, 2, in_channels=1, widths=(4, 6, 8), depth=8)
            if ride
            else build_model("digits_net", 5)
        )
    domains = name in ("mixstyle", "coral", "irm", "vrex")
    options: dict[str, Any] = {"groups": 2} if domains else {}
    hyper = MethodConfig(mixstyle_after=("layer1",)) if name == "mixstyle" else MethodConfig()
    return build_method(
        name,
        network=network,
        class_counts=COUNTS,
        module=ModuleConfig(**module),
        seed=0,
        hyper=hyper,
        **options,
    )


METHODS = [
    *("cross_entropy", "balanced_softmax", "ldam", "ride", "paco", "crt", "lws", "tau_norm"),
    *("balms", "mdd", "mixstyle", "coral", "irm", "vrex", "linear_probe"),
]


@pytest.mark.parametrize("name", METHODS)
def test_classified_features_are_the_prediction(name: str) -> None:
    method = method_named(name).eval()
    relations = method.relations()
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4, 4])
    features = relations.features(x.requires_grad_())
    assert len(features) == 6 and features.requires_grad
    torch.testing.assert_close(relations.classify(features), method.predict(x))
    assert relations.module is method and relations.encoder is getattr(method, "encoder", None)
    loss = relations.loss(relations.classify(features)[:1], y[:1])
    assert loss.ndim == 0 and bool(loss.isfinite())
    assert (relations.encoder is None) == (name == "linear_probe")


def test_the_baseline_and_mixed_only_are_told_apart() -> None:
    assert method_named("cross_entropy", enabled=False).relations().encoder is None
    assert method_named("ride", enabled=False).relations().encoder is None
    for name in ("cross_entropy", "ride"):
        assert method_named(name, streams="mixed_only").relations().mixed_only
        assert not method_named(name).relations().mixed_only


def test_ride_mixes_each_expert_by_itself_as_in_training() -> None:
    method = method_named("ride", dropout=0.0).train()
    relations = method.relations()
    x = torch.randn(6, 1, 8, 8)
    with torch.no_grad():
        expected = method(x)
        plain = relations.features(x)
        mixed, _ = relations.mix(plain)
        got = torch.cat((relations.classify(plain), relations.classify(mixed)))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("attend", ["batch", "self"])
def test_class_rows_join_the_samples_as_in_training(attend: str) -> None:
    method = method_named("cross_entropy", context="classes", attend=attend, dropout=0.0, layers=2)
    method.double().train()
    x, y = torch.randn(6, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 1, 3, 0, 4])
    method.step({"x": x, "y": y})  # class 2 is not seen
    relations = method.relations()
    assert relations.context.shape == (4, 64)
    plain = torch.randn(5, 64, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = method.encoder.mix_with_classes(plain)
        mixed, attention = relations.mix(plain)
        rows = relations.mix_rows(plain.expand(5, 5, 64), torch.arange(5))
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(rows, expected)
    assert attention.shape == (4, 5, 5)
    seen = batch_influence(relations, plain, torch.tensor([0, 1, 2, 3, 4]))
    given = 1 - attention.sum(2)
    torch.testing.assert_close(seen.to_context, given)
    torch.testing.assert_close(seen.attention.sum(2), torch.ones(4, 5, dtype=torch.float64))
    torch.testing.assert_close(seen.attention * (1 - given)[..., None], attention)
    assert (given > 0).all() if attend == "batch" else (given == 0).all()


def test_the_loss_of_centres_is_paco_without_samples() -> None:
    """By PaCo's definition: without samples, p is the softmax of the centres, z_c + log p_c."""
    method = method_named("paco")
    logits, y = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 4])
    prior = COUNTS.double() / COUNTS.sum()
    exponentials = logits.double().exp() * prior
    p = exponentials[torch.arange(6), y] / exponentials.sum(1)
    torch.testing.assert_close(method.criterion(logits, y), -p.log().mean().float())


@pytest.mark.parametrize("attend", ["batch", "self"])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_row_is_that_of_torchs_own_layer(attend: Attend, heads: int) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, heads, 6, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    x, rows = torch.randn(5, 4, 6, dtype=torch.float64), torch.tensor([3, 0, 0, 2, 1])
    others = ~torch.eye(4, dtype=torch.bool) if attend == "self" else None
    # Torch has the samples of a sequence first, and our batches are its sequences.
    expected = layer(x.transpose(0, 1), src_mask=others).transpose(0, 1)[torch.arange(5), rows]
    got = one_row(x, rows, EncoderWeights.of(layer), heads=heads, attend=attend)
    torch.testing.assert_close(got, expected)
