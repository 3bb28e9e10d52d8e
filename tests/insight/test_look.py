"""The whole record: what is in it, that it is right, and that looking leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.classes import Classes
from batchformer.insight.look import Arrays, look
from batchformer.insight.record import save
from batchformer.insight.relations import Relations
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.tasks.base import EvaluationImages
from batchformer.nn.module import BatchFormer

Make = Callable[..., Relations]
CPU = torch.device("cpu")
OF_EVERY_RUN = {
    *("classes", "train_counts", "shot_of_class", "separation", "spread"),
    *("reliability_count", "reliability_confidence", "reliability_correct"),
    *("projection", "projection_labels", "projection_share"),
    *("cam_thumbnails", "cam_heat", "cam_labels", "cam_predictions", "cam_confidence"),
    *("cam_rows", "cam_layer"),
}
WITH_BATCHFORMER = {
    *("bin_of_class", "bin_pairs", "attention", "attention_self", "attention_same"),
    *("attention_other", "attention_shots", "shot_pairs", "gradient_abs", "gradient_l2"),
    *("gradient_images_abs", "gradient_images_l2", "gradient_samples"),
    *("batch_thumbnails", "batch_labels", "batch_predictions", "batch_attention"),
    "batch_gradient",
}


class FromZeroToOne:
    """Images from 0 to 1."""

    draws = 0

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return x.to(self.dtype) / 255


@pytest.fixture(scope="module")
def shown() -> EvaluationImages:
    draw = torch.Generator().manual_seed(5)
    x = torch.randint(0, 256, (90, 1, 6, 6), generator=draw, dtype=torch.uint8)
    classes = Classes.by_shots(tuple("abcd"), torch.tensor([300, 50, 5, 120]))
    to_double = FromZeroToOne(torch.float64)
    return EvaluationImages(classes, ImageSplit(x, torch.arange(90) % 4), to_double, CPU)


def seen(relations: Relations, shown: EvaluationImages, **options: Any) -> Arrays:
    return look(relations, shown, network=relations.module, **options)


def test_the_record_has_what_it_promises(make_relations: Make, shown: EvaluationImages) -> None:
    found = seen(make_relations(), shown)
    assert set(found) == OF_EVERY_RUN | WITH_BATCHFORMER
    shapes = {
        "attention": (2, 4, 4),
        "gradient_abs": (4,),
        "cam_thumbnails": (48, 6, 6, 3),
        "cam_heat": (48, 4, 4),
        "batch_thumbnails": (3, 64, 6, 6, 3),
        "batch_attention": (3, 2, 64, 64),
        "batch_gradient": (3, 64, 64),
        "projection": (90, 2),
        "cam_layer": (),
    }
    assert {name: found[name].shape for name in shapes} == shapes
    types = {"cam_heat": "float16", "batch_attention": "float16", "batch_gradient": "float32"}
    assert {name: str(found[name].dtype) for name in types} == types
    assert str(found["cam_layer"]) == "norm"
    numbers = [value for value in found.values() if value.dtype.kind == "f"]
    assert all(np.isfinite(value).all() for value in numbers)
    assert set(seen(make_relations(baseline=True), shown)) == OF_EVERY_RUN


def test_sums_are_those_of_the_whole_test_set_at_once(
    make_relations: Make, shown: EvaluationImages
) -> None:
    """All images in one batch: whatever their order, pairs are the same."""
    relations = make_relations()
    found = seen(relations, shown, batch=90, steps=89)
    assert relations.encoder is not None
    x, y = shown.images.x.double() / 255, shown.labels
    leaf = x.clone().requires_grad_()
    features = relations.features(leaf)
    mixed, weights = relations.encoder.mix(features, return_weights=True)
    weights = weights[0, 0].detach()
    same = (y[:, None] == y) & ~torch.eye(90, dtype=torch.bool)
    expected = (weights * same).sum((1, 2))
    np.testing.assert_allclose(found["attention_same"][:, 0], expected)
    assert found["attention_same"][0, 1] == int(same.sum())
    np.testing.assert_allclose(found["attention_self"][:, 0], weights.diagonal(0, 1, 2).sum(1))
    order = [0, 3, 1, 2]  # by training count
    for p, a in enumerate(order):
        for q, b in enumerate(order):
            pairs = weights[:, y == a][:, :, y == b].sum((1, 2))
            itself = weights.diagonal(0, 1, 2)[:, y == a].sum(1) if a == b else 0
            np.testing.assert_allclose(found["attention"][:, p, q], pairs - itself, rtol=1e-5)
    logits = (relations.classify(mixed) + relations.classify(features)) / 2
    losses = F.cross_entropy(logits, y, reduction="none")
    by_class: dict[str, list[list[float]]] = {
        name: [[] for _ in range(4)] for name in ("abs", "l2", "images_abs", "images_l2")
    }
    for i, label in enumerate(y.tolist()):
        others = torch.arange(90) != i
        slopes = torch.autograd.grad(losses[i], (features, leaf), retain_graph=True)
        for slope, name in zip(slopes, ("", "images_"), strict=True):
            rows = slope[others].flatten(1)
            by_class[f"{name}abs"][label].append(float(rows.abs().mean()))
            by_class[f"{name}l2"][label].append(float(rows.norm(dim=1).mean()))
    for name, values in by_class.items():
        expected_means = [np.mean(of_class) for of_class in values]
        np.testing.assert_allclose(found[f"gradient_{name}"], expected_means, err_msg=name)


def test_predictions_are_those_of_the_plain_network(
    make_relations: Make, shown: EvaluationImages
) -> None:
    relations = make_relations()
    found = seen(relations, shown)
    with torch.no_grad():
        logits = relations.classify(relations.features(shown.images.x.double() / 255))
    right = logits.argmax(1) == shown.labels
    assert found["reliability_correct"][0].sum() == int(right.sum())
    few = shown.labels == 2
    assert found["reliability_correct"][3].sum() == int((right & few).sum())
    rows = found["cam_rows"]
    assert found["cam_predictions"].tolist() == logits.argmax(1)[rows].tolist()
    sure = logits.softmax(1)[torch.arange(90), shown.labels]
    np.testing.assert_allclose(found["cam_confidence"], sure[rows])
    images = shown.images.x[:, 0].numpy()
    assert (found["cam_thumbnails"][..., 0] == images[rows]).all()
    for number in range(3):
        for sample in range(64):
            small = found["batch_thumbnails"][number, sample, :, :, 0]
            (row,) = np.flatnonzero((images == small).all((1, 2)))
            assert found["batch_labels"][number, sample] == shown.labels[row]
            assert found["batch_predictions"][number, sample] == logits[row].argmax()


def test_explored_batches_are_those_of_the_encoder(
    make_relations: Make, shown: EvaluationImages
) -> None:
    relations = make_relations()
    found = seen(relations, shown)
    assert relations.encoder is not None
    pixels = torch.from_numpy(found["batch_thumbnails"][1, ..., :1]).permute(0, 3, 1, 2)
    features = relations.features(pixels.double() / 255)
    _, weights = relations.encoder.mix(features, return_weights=True)
    np.testing.assert_allclose(
        found["batch_attention"][1], weights[0, 0].detach(), rtol=2e-3, atol=1e-6
    )
    assert not found["batch_gradient"].diagonal(0, 1, 2).any()
    assert (found["batch_gradient"] > 0).sum() == 3 * 64 * 63


def test_looking_is_the_same_in_training_and_leaves_no_trace(
    make_relations: Make, shown: EvaluationImages
) -> None:
    relations = make_relations(dropout=0.5)
    module, in_eval = relations.module, seen(relations, shown)
    module.train()
    module.norm.eval()
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = torch.full_like(parameter, number) if number % 2 else None
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    torch.manual_seed(11)
    random.seed(11)
    expected = torch.rand(3), random.random()
    torch.manual_seed(11)
    random.seed(11)
    in_training = seen(relations, shown)
    assert torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1]
    assert [part.training for part in module.modules()] == modes
    for number, parameter in enumerate(module.parameters()):
        assert (parameter.grad is not None) == bool(number % 2)
        assert parameter.grad is None or bool((parameter.grad == number).all())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(part._forward_hooks for part in module.modules())
    for name, value in in_eval.items():
        np.testing.assert_array_equal(value, in_training[name], err_msg=name)


def test_seeds_look_at_the_same_images_in_other_batches(
    make_relations: Make, shown: EvaluationImages
) -> None:
    relations = make_relations()
    zero, one = (seen(relations, shown, seed=seed, measured=60, batch=20) for seed in (0, 1))
    assert zero["gradient_samples"].tolist() == [15] * 4
    for name in ("cam_rows", "batch_labels", "projection_labels", "batch_attention"):
        np.testing.assert_array_equal(zero[name], one[name], err_msg=name)
    np.testing.assert_allclose(zero["projection"], one["projection"], atol=1e-6)
    assert not np.array_equal(zero["attention"], one["attention"])
    assert zero["bin_pairs"].sum() == one["bin_pairs"].sum() == 3 * 20 * 19


def test_a_thousand_classes_of_noise_fit(tmp_path: Path) -> None:
    """Large thumbnails that cannot be compressed, many heads and classes."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (1000, 3, 64, 64), generator=draw, dtype=torch.uint8)
    counts = torch.linspace(1200, 5, 1000).long()
    classes = Classes.by_shots([f"n{number:08d}" for number in range(1000)], counts)
    to_float = FromZeroToOne(torch.float32)
    shown = EvaluationImages(classes, ImageSplit(x, torch.arange(1000)), to_float, CPU)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 9, 8), nn.ReLU(), nn.Linear(16, 1000))
    encoder = BatchFormer(16, heads=8)

    def features(some: Tensor) -> Tensor:
        pooled: Tensor = network[:2](some).mean((2, 3))
        return pooled

    module = nn.ModuleList([network, encoder])
    relations = Relations(module, features, network[2], nn.CrossEntropyLoss(), encoder)
    found = look(relations, shown, network=network, measured=128)
    assert found["attention"].shape == (8, 100, 100)
    assert found["batch_thumbnails"].shape == (3, 64, 48, 48, 3)
    assert int(found["gradient_samples"].sum()) == 128
    assert np.isnan(found["gradient_abs"]).sum() == 1000 - 128
    save(tmp_path / "insight.npz", found)
    assert (tmp_path / "insight.npz").stat().st_size < 3e6
