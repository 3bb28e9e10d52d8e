"""The closed form of ESZSL against least squares, and as a method."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.data import FeatureConfig
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.sets.attributes import AttributeFeatures
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.eszsl import Eszsl, eszsl, eszsl_scores
from batchformer.lab.tasks.generalized import GeneralizedTask


@pytest.mark.parametrize("targets", ["signed", "indicator"])
def test_the_minimum_by_least_squares(targets: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    x, s = (torch.randn(*size, generator=draw).double() for size in ((30, 5), (4, 3)))
    labels = torch.randint(0, 4, (30,), generator=draw)
    gamma, lambda_ = 0.7, 2.5
    y = np.full((30, 4), -1.0 if targets == "signed" else 0.0)
    y[np.arange(30), labels] = 1
    # vec(A V B') = (A kron B) vec(V), row by row; one block of equations for each term.
    one_d, one_a = np.sqrt(gamma) * np.eye(5), np.sqrt(lambda_) * np.eye(3)
    blocks = [np.kron(a, b) for a in (x.numpy(), one_d) for b in (s.numpy(), one_a)]
    wanted = np.concatenate([y.ravel(), np.zeros(sum(len(b) for b in blocks[1:]))])
    expected = np.linalg.lstsq(np.concatenate(blocks), wanted, rcond=None)[0].reshape(5, 3)
    got = eszsl(x.float().double(), labels, s, gamma, lambda_, targets)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)
    assert got.dtype == torch.float64


def linear_classes(noise: float) -> AttributeFeatures:
    """Twelve classes, whose means are linear in their attributes; the last three are unseen."""
    draw = torch.Generator().manual_seed(1)
    attributes = torch.nn.functional.normalize(torch.randn(12, 6, generator=draw), dim=1)
    labels = torch.arange(12).repeat_interleave(20)
    means = attributes @ torch.randn(6, 10, generator=draw)
    features = means[labels] + noise * torch.randn(240, 10, generator=draw)
    rows, held = torch.arange(180), torch.arange(180) % 4 == 0
    return AttributeFeatures(
        name="linear",
        features=features,
        labels=labels,
        attributes=attributes,
        classes=tuple("abcdefghijkl"),
        trainval=rows[~held],
        test_seen=rows[held],
        test_unseen=torch.arange(180, 240),
        val_classes=torch.tensor([2, 5]),
    )


def accuracy(
    data: AttributeFeatures, exponents: tuple[int, int], targets: Any = "indicator"
) -> dict[str, float]:
    """What a run would report."""
    task = GeneralizedTask(data, FeatureConfig(choose=False), torch.device("cpu"))
    gamma, lambda_ = exponents
    hyper = MethodConfig(eszsl_gamma=gamma, eszsl_lambda=lambda_, eszsl_targets=targets)
    method = Eszsl(**task.method_options, module=ModuleConfig(enabled=False), seed=0, hyper=hyper)
    optimizer_step = OptimizerStep(TrainConfig(), torch.device("cpu"))
    return dict(task.evaluate(method, optimizer_step).metrics)


def test_it_knows_classes_that_it_never_saw() -> None:
    data = linear_classes(noise=0.3)
    grid = [(gamma, lambda_) for gamma in (-2, 0, 2) for lambda_ in (-2, 0, 2)]
    inner, found = data.for_selection(), {}
    for targets in ("indicator", "signed"):
        chosen = max(grid, key=lambda pair, t=targets: accuracy(inner, pair, t)["hm"])  # type: ignore[misc]
        found[targets] = accuracy(data, chosen, targets)
    best = found["indicator"]
    assert best["hm"] > 90 and best["unseen"] > 80
    assert best["hm"] > accuracy(data, (3, 3))["hm"]
    assert 20 < found["signed"]["unseen"] < best["unseen"]


def test_as_a_method_it_is_the_closed_form() -> None:
    draw = torch.Generator().manual_seed(0)
    attributes = torch.randn(5, 4, generator=draw)
    seen, unseen = torch.tensor([0, 2, 4]), torch.tensor([1, 3])
    labels = seen[torch.arange(30) % 3]
    features = attributes[labels] @ torch.randn(4, 6, generator=draw)
    hyper = MethodConfig(eszsl_gamma=-1, eszsl_lambda=1)
    options = {"module": ModuleConfig(enabled=False), "seed": 0, "hyper": hyper}
    method = Eszsl(features, labels, attributes, seen, unseen, **options)  # type: ignore[arg-type]
    own = torch.arange(30) % 3
    matrix = eszsl(features, own, attributes[seen], 0.1, 10.0)
    with torch.autocast("cpu", torch.bfloat16):  # leaves double precision alone
        found = method.predict(features)
    assert torch.equal(found, eszsl_scores(features, matrix, attributes))
    torch.testing.assert_close(method.deployed()(features.double()), method.predict(features))
    assert method.optimizers(OptimConfig()) == {}
    before = method.matrix.clone()
    optimizer_step = OptimizerStep(TrainConfig(), torch.device("cpu"))
    losses = method.update({"x": features, "y": labels}, {}, optimizer_step)
    expected = torch.nn.functional.cross_entropy(method.predict(features), labels)
    torch.testing.assert_close(losses["loss"], expected.float())
    assert torch.equal(method.matrix, before)


def test_units_and_origins_of_channels_change_nothing() -> None:
    data = linear_classes(noise=1.0)
    draw = torch.Generator().manual_seed(2)
    factor, shift = torch.rand(10, generator=draw) * 50 + 1, torch.randn(10, generator=draw) * 20
    moved = dataclasses.replace(data, features=data.features * factor + shift)
    assert accuracy(moved, (0, 0)) == pytest.approx(accuracy(data, (0, 0)))
