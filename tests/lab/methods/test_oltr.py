"""OLTR: the loss of centroids, the memory, attention, and both stages with BatchFormer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.losses.oltr import attraction, centroid_loss, repulsion
from batchformer.lab.methods import build_method
from batchformer.lab.methods.training_images import Bank
from batchformer.lab.models.heads import WithFeatureLayer
from batchformer.lab.models.networks import resnet32
from batchformer.lab.models.oltr import MetaEmbedding, SpatialAttention
from batchformer.nn.randomness import drawing

V, M = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]])


@pytest.fixture
def second(make: Any) -> Any:
    """The second stage on a small network, with the centroids that it begins with."""

    def made(hyper: dict[str, Any] | None = None, begin: bool = True, **module: Any) -> Any:
        method = make("oltr", hyper, **module)
        if begin:
            method.begin_training(8)
        return method

    return made


# The loss


def test_the_loss_sample_by_sample() -> None:
    torch.manual_seed(0)
    v, m = torch.randn(7, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    y = torch.tensor([0, 2, 2, 1, 0, 2, 0])
    pairs = [(i, k, float(((v[i] - m[k]) ** 2).sum())) for i in range(7) for k in range(4)]
    near = sum(d for i, k, d in pairs if k == y[i]) / 14
    far = 10 - sum(d for i, k, d in pairs if k != y[i]) / 28
    assert far > 0
    assert float(attraction(v, y, m)) == pytest.approx(near)
    assert float(repulsion(v, y, m)) == pytest.approx(far)
    assert float(centroid_loss(v, y, m, 0.3)) == pytest.approx(0.3 * (near + 0.01 * far))
    assert float(repulsion(20 * v, y, m)) == 0, "far enough"


def test_its_weight_scales_all_gradients_but_that_of_attracted_centroids() -> None:
    torch.manual_seed(0)
    y, weight = torch.tensor([0, 2, 2, 1, 0, 2, 0]), 0.01
    v = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    m = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    # A scaled loss, as by a loss scaler or a part of an accumulated batch, scales everything.
    (8 * attraction(v, y, m, weight)).backward()
    assert v.grad is not None and m.grad is not None
    torch.testing.assert_close(v.grad, 8 * weight * (v - m[y]).detach() / 7)
    for k in range(4):
        own = [(m[k] - v[i]).detach() for i in range(7) if y[i] == k]
        wanted = torch.stack([*own, torch.zeros(3, dtype=torch.float64)]).sum(0)
        torch.testing.assert_close(m.grad[k], 8 * wanted / (1 + len(own)) / 7)
    m.grad = v.grad = None
    repulsion(v, y, m).backward()
    apart = [[(v[i] - m[k]).detach() * (k != y[i]) for k in range(4)] for i in range(7)]
    torch.testing.assert_close(m.grad, 2 * sum(torch.stack(row) for row in apart) / 28)


def test_half_precision_counts_in_single() -> None:
    torch.manual_seed(0)
    v, m, y = torch.randn(7, 16).bfloat16(), torch.randn(4, 16), torch.arange(7) % 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = centroid_loss(v, y, m)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), centroid_loss(v.double(), y, m.double()))


# The head


def head(selected: bool = False) -> MetaEmbedding:
    made = MetaEmbedding(nn.Linear(2, 2))
    with torch.no_grad():
        made.centroids.copy_(M)
        made.weight.copy_(torch.eye(2))
        if not selected:
            made.selector.weight.zero_()
            made.selector.bias.zero_()
    return made


def test_what_the_memory_adds_by_hand() -> None:
    torch.manual_seed(1)
    made = head(selected=True)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[2.0, 1.0], [-1.0, 0.5]]))
        shares = (made.hallucinator.weight @ V[0] + made.hallucinator.bias).exp()
        recalled = (shares / shares.sum()) @ M
        chosen = (made.selector.weight @ V[0] + made.selector.bias).tanh()
        u = 10 / 4 * (V[0] + chosen * recalled)  # the nearest centroid is 4 away
        squashed = u / u.norm() * u.norm() / (1 + u.norm())
        wanted = [16 * float(squashed @ w / w.norm()) for w in made.weight]
        assert made(V)[0].tolist() == pytest.approx(wanted)


def test_a_feature_on_a_centroid_has_finite_logits_and_gradients() -> None:
    v = torch.tensor([[3.0, 0.0], [0.0, 0.0]], requires_grad=True)
    made = head(selected=True)
    logits = made(v)
    logits.square().sum().backward()
    assert v.grad is not None and logits.isfinite().all() and v.grad.isfinite().all()
    assert logits.abs().max() <= 16


def test_centroids_learn_by_their_own_loss_alone() -> None:
    made = head(selected=True)
    made(V).sum().backward()
    assert made.centroids.grad is None
    assert all(p.grad is not None for n, p in made.named_parameters() if n != "centroids")


# Attention


def test_attention_position_by_position() -> None:
    torch.manual_seed(2)
    layer = SpatialAttention(4, 3).double()
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)

    def one(conv: nn.Conv2d, column: Tensor) -> Tensor:
        weight = conv.weight.flatten(1)
        return weight @ column if conv.bias is None else weight @ column + conv.bias

    with torch.no_grad():
        for image in range(2):
            columns = x[image].flatten(1).T  # nine positions
            a = layer.weights(x[image].flatten()).softmax(0)
            values = torch.stack([one(layer.value, other) for other in columns])
            for p, column in enumerate(columns):
                query = one(layer.query, column)
                scores = torch.stack([query @ one(layer.key, other) for other in columns])
                wanted = column + a[p] * one(layer.output, scores.softmax(0) @ values)
                torch.testing.assert_close(layer(x)[image].flatten(1)[:, p], wanted)


def test_maps_of_another_side_are_answered_with_what_to_set() -> None:
    with pytest.raises(ValueError, match=r"3x3 positions, and got \(4, 2, 2\): set --hyper\.atten"):
        SpatialAttention(4, 3)(torch.zeros(1, 4, 2, 2))


def on_resnet(**hyper: Any) -> Any:
    with drawing(0, "weights"):
        network = resnet32(5, in_channels=1, widths=(4, 6, 8), depth=8)
    return build_method(
        "oltr",
        network=network,
        class_counts=torch.tensor([9, 5, 3, 2, 1]),
        module=ModuleConfig(),
        seed=0,
        hyper=MethodConfig(**hyper),
    )


def test_attention_stands_behind_the_last_stage() -> None:
    method = on_resnet(attention_after="layer3", attention_side=2)
    stage, attention = method.network.layer3
    assert isinstance(attention, SpatialAttention) and len(stage) == 1
    with torch.no_grad():
        attention.output.weight.zero_()
        x = torch.randn(2, 1, 8, 8)
        plain = on_resnet().eval().features(x)
        torch.testing.assert_close(method.eval().features(x), plain)
    with pytest.raises(ValueError, match=r"has no part of that name.*one of conv1, bn1, layer1"):
        on_resnet(attention_after="layer4")


# The method


def test_the_parts_of_the_first_stage_are_taken_over(make: Any, second: Any) -> None:
    first = make("oltr_plain").network.state_dict()
    method = second({"fresh_layer": True}, begin=False)
    assert isinstance(method.network, WithFeatureLayer) and method.network.num_features == 64
    state = method.network.state_dict()
    assert torch.equal(state["body.conv1.weight"], first["conv1.weight"])
    assert torch.equal(state["fc.hallucinator.weight"], first["fc.weight"])
    bound = 64**-0.5
    assert 0.9 * bound < float(state["fc.weight"].abs().max()) <= bound


def test_centroids_begin_as_class_means_in_eval(make: Any) -> None:
    x, labels = torch.randn(12, 1, 8, 8), torch.arange(12) % 4  # the fifth class has no image
    bank = Bank(labels, 0, lambda: zip(x.split(5), labels.split(5), strict=True))
    method = make("oltr", options={"bank": bank})
    method.begin_training(8)
    method.eval()
    with torch.no_grad():
        features = method.features(x)
    wanted = [features[labels == c].mean(0) for c in range(4)] + [torch.zeros(64)]
    torch.testing.assert_close(method.head.centroids.data, torch.stack(wanted))
    statistics = method.network.bn1.running_mean
    assert torch.equal(statistics, torch.zeros_like(statistics)), "the images were scored"


def test_both_streams_through_the_memory_and_centroids_on_plain_features(
    second: Any, batch: Any, quiet: Any
) -> None:
    method = quiet(second(heads=2, dropout=0.0))
    features = method.features(batch["x"])
    mixed = method.encoder(features)
    losses = [
        nn.functional.cross_entropy(method.head(rows), batch["y"]) for rows in (features, mixed)
    ]
    own = centroid_loss(features, batch["y"], method.head.centroids, 0.01)
    found = method.step(batch)
    torch.testing.assert_close(found["loss"], sum(losses) / 2 + own)
    torch.testing.assert_close(found["centroid_loss"], own)


def test_rates(make: Any, second: Any) -> None:
    hyper = {"backbone_lr_factor": 0.01, "centroid_lr_factor": 0.5, "fresh_layer": True}
    method = second(hyper, lr_factor=0.2)
    groups = {g["name"]: g for g in method.parameter_groups(OptimConfig(lr=2.0))}
    rates = {name: group["lr"] for name, group in groups.items()}
    assert rates == {"backbone": 0.02, "model": 2.0, "centroids": 1.0, "batchformer": 0.4}
    head = {id(p) for p in method.head.parameters()} - {id(method.head.centroids)}
    assert {id(p) for p in groups["model"]["params"]} == head
    assert groups["centroids"]["params"] == [method.head.centroids]
    plain = make("oltr_plain", {"backbone_lr_factor": 0.01}, enabled=False)
    groups = {g["name"]: g for g in plain.parameter_groups(OptimConfig(lr=2.0))}
    assert groups["model"]["params"] == [*plain.network.fc.parameters()]
    assert groups["backbone"]["lr"] == 0.02


def test_of_a_frozen_backbone_only_attention_layer_and_head_are_trained(
    batch: Any, assert_trained_once: Any
) -> None:
    method = on_resnet(
        attention_after="layer3", attention_side=2, fresh_layer=True, frozen_backbone=True
    )
    trained = {name for name, p in method.network.named_parameters() if p.requires_grad}
    parts = ("body.layer3.1.", "layer.", "fc.")
    assert trained == {n for n, _ in method.network.named_parameters() if n.startswith(parts)}
    before = method.network.body.bn1.running_mean.clone()
    assert_trained_once(method, batch)
    assert not torch.equal(method.network.body.bn1.running_mean, before), "statistics move on"
