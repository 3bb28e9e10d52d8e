"""LARS against a loop in double precision, and what is not decayed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optim import (
    Lars,
    build_optimizer,
    set_lr,
)

LARS = OptimConfig(name="lars", lr=0.5, momentum=0.9, weight_decay=0.1, trust=0.02)


def some_parameters() -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (4,), (2, 3, 2), ())
    made = [nn.Parameter(torch.randn(s, generator=draw, dtype=torch.float64)) for s in shapes]
    return [*made, nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))]


def gradients(step: int, parameters: list[nn.Parameter]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(100 + step)
    made = [torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in parameters]
    if step == 3:
        made[0].zero_()  # with weight decay its change still has a length
    return made


def length(values: list[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values))


def by_loop(parameters: list[nn.Parameter], steps: int, matrices: bool) -> list[list[float]]:
    """LARS number by number."""
    values = [p.detach().flatten().tolist() for p in parameters]
    moments = [[0.0] * len(v) for v in values]
    for step in range(steps):
        lr = 0.5 * (1 - step / steps)
        for i, gradient in enumerate(gradients(step, parameters)):
            spared = matrices and parameters[i].ndim <= 1
            decay = 0.0 if spared else 0.1
            g = gradient.flatten().tolist()
            d = [a + decay * p for a, p in zip(g, values[i], strict=True)]
            ratio = 1.0
            if not spared and length(values[i]) > 0 and length(d) > 0:
                ratio = 0.02 * length(values[i]) / length(d)
            moments[i] = [0.9 * m + ratio * c for m, c in zip(moments[i], d, strict=True)]
            values[i] = [p - lr * m for p, m in zip(values[i], moments[i], strict=True)]
    return values


@pytest.mark.parametrize("decayed", ["all", "matrices"])
@pytest.mark.parametrize("rate", [float, torch.tensor])
def test_twenty_steps_by_a_loop(decayed: Any, rate: Any) -> None:
    parameters = some_parameters()
    config = OptimConfig(
        name="lars", lr=0.5, momentum=0.9, weight_decay=0.1, trust=0.02, decayed=decayed
    )
    optimizer = build_optimizer([{"params": parameters}], config)
    for group in optimizer.param_groups:
        group["lr"] = rate(0.5)
    expected = by_loop(parameters, 20, decayed == "matrices")
    for step in range(20):
        made = gradients(step, parameters)
        for parameter, gradient in zip(parameters, made, strict=True):
            parameter.grad = gradient.clone()
        set_lr(optimizer, 1 - step / 20)
        optimizer.step()
        for parameter, gradient in zip(parameters, made, strict=True):
            assert torch.equal(parameter.grad, gradient), "gradients are left as they were"  # type: ignore[arg-type]
    tolerance = 1e-12 if rate is float else 1e-6  # a rate in a tensor has single precision
    for parameter, wanted in zip(parameters, expected, strict=True):
        got = parameter.detach().flatten().tolist()
        assert got == pytest.approx(wanted, rel=tolerance, abs=tolerance)


def test_what_has_no_gradient_stays() -> None:
    parameters = some_parameters()
    before = [p.detach().clone() for p in parameters]
    optimizer = Lars(parameters, lr=1.0, weight_decay=0.1)
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    assert not torch.equal(parameters[0], before[0]) and len(optimizer.state) == 1
    for parameter, old in zip(parameters[1:], before[1:], strict=True):
        assert torch.equal(parameter, old)


def trained(parameters: list[nn.Parameter], optimizer: Any, steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(parameters, gradients(step, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()


def test_a_step_writes_in_place() -> None:
    """As a captured update must: the same tensors, step after step."""
    parameters = some_parameters()
    optimizer = build_optimizer([{"params": parameters}], LARS)
    trained(parameters, optimizer, range(1))
    held = [*parameters, *(s["momentum_buffer"] for s in optimizer.state.values())]
    places = [tensor.data_ptr() for tensor in held]
    trained(parameters, optimizer, range(1, 3))
    held = [*parameters, *(s["momentum_buffer"] for s in optimizer.state.values())]
    assert [tensor.data_ptr() for tensor in held] == places


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars"])
def test_groups_are_parted_by_dimensions(name: Any) -> None:
    layer, norm = nn.Linear(3, 2), nn.LayerNorm(2)
    groups = [
        {"params": layer.parameters(), "lr": 0.4, "name": "model"},
        {"params": norm.parameters(), "lr": 0.04, "name": "batchformer"},
    ]
    config = OptimConfig(name=name, lr=0.4, weight_decay=0.1, decayed="matrices")
    found = build_optimizer(groups, config).param_groups
    assert [(g["name"], g["base_lr"], g["weight_decay"]) for g in found] == [
        ("model", 0.4, 0.1),
        ("model", 0.4, 0.0),
        ("batchformer", 0.04, 0.0),
    ]
    assert [[p.ndim for p in g["params"]] for g in found] == [[2], [1], [1, 1]]
    assert [g.get("adapted") for g in found] == (
        [True, False, False] if name == "lars" else [None] * 3
    )


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_all_is_one_group_as_before(name: Any) -> None:
    layer = nn.Linear(3, 2)
    config = OptimConfig(name=name, weight_decay=0.1)
    (group,) = build_optimizer([{"params": layer.parameters()}], config).param_groups
    assert [p.ndim for p in group["params"]] == [2, 1] and group["weight_decay"] == 0.1
    assert "adapted" not in group and "trust" not in group
