"""Learning rates against torch's schedulers; LARS against a loop in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

from batchformer import BatchFormer, param_groups
from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.lab.engine.optim import (
    Lars,
    build_optimizer,
    load_optimizer_state,
    lr_factor,
    optimizer_state,
    reset_state,
    set_lr,
)


def assert_schedule(config: ScheduleConfig, updates: int, torchs: Callable[..., Any]) -> None:
    """The factors are the rates that torch's scheduler gives an optimizer with rate 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torchs(optimizer)
    for update in range(updates):
        rate = optimizer.param_groups[0]["lr"]
        assert lr_factor(config, update, updates, 1) == pytest.approx(rate, abs=1e-9)
        optimizer.step()
        scheduler.step()


@settings(max_examples=30)
@given(updates=st.integers(2, 60))
def test_cosine_is_torchs(updates: int) -> None:
    torchs = partial(lr_scheduler.CosineAnnealingLR, T_max=updates)
    assert_schedule(ScheduleConfig(kind="cosine"), updates, torchs)


@settings(max_examples=30)
@given(milestones=st.sets(st.integers(1, 40)).map(sorted), gamma=st.floats(0.01, 1))
def test_multistep_is_torchs(milestones: list[int], gamma: float) -> None:
    torchs = partial(lr_scheduler.MultiStepLR, milestones=milestones, gamma=gamma)
    config = ScheduleConfig(kind="multistep", milestones=tuple(milestones), gamma=gamma)
    assert_schedule(config, 45, torchs)


def test_a_schedule_one_epoch_ahead_by_hand() -> None:
    """591 epochs of 21 updates: from 0.5 in 37 epochs to 1, then a cosine; the last epoch is 0."""
    config = ScheduleConfig(kind="cosine", per="epoch", warmup=37, warmup_from=0.5, ahead=1)

    def at(epoch: int, within: int = 0) -> float:
        return lr_factor(config, epoch * 21 + within, 591 * 21, 21)

    assert at(0) == at(0, 20) == pytest.approx(0.5 + 0.5 / 37)
    assert at(35) == pytest.approx(0.5 + 0.5 * 36 / 37) and at(36) == 1.0
    middle = 37 + (591 - 37) // 2
    assert at(middle - 1) == pytest.approx(0.5)
    assert at(590) == pytest.approx(0.0, abs=1e-12)
    assert at(589) == pytest.approx(0.5 * (1 + math.cos(math.pi * 553 / 554)))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            ScheduleConfig(kind="constant", warmup=4, warmup_from=0.2),
            [0.2, 0.4, 0.6, 0.8, 1.0, 1.0],
        ),
        (
            ScheduleConfig(kind="power", rate=0.5, power=2.0, warmup=2),
            [0.0, 0.5, 1.0, 1.5**-2, 2.0**-2],
        ),
        (ScheduleConfig(kind="cosine", warmup=2, warmup_overshoot=2), [0, 0.5, 1, 1.5, 2]),
    ],
    ids=["constant", "power", "overshoot"],
)
def test_warmup_by_hand(config: ScheduleConfig, expected: list[float]) -> None:
    factors = [lr_factor(config, update, 6, 1) for update in range(len(expected))]
    assert factors == pytest.approx(expected)


def test_pacos_released_warmup_by_hand() -> None:
    """The rate times (epoch + 1) / 10 while epoch <= 10, counted from 0: 1.1 in the eleventh."""
    options = {"kind": "multistep", "per": "epoch", "warmup": 9, "warmup_from": 0.1}
    released = ScheduleConfig(**options, milestones=(321, 361), warmup_overshoot=1)  # type: ignore[arg-type]
    rates = [lr_factor(released, epoch * 84 + 83, 400 * 84, 84) for epoch in range(400)]
    assert rates[:11] == pytest.approx([(epoch + 1) / 10 for epoch in range(11)])
    assert rates[11:] == pytest.approx([1.0] * 310 + [0.1] * 40 + [0.01] * 39)
    paper = ScheduleConfig(**options)  # type: ignore[arg-type]
    assert lr_factor(paper, 10 * 84, 400 * 84, 84) == 1.0


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_each_group_is_scaled_from_its_own_rate(name: str) -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.4, 0.04)]
    optimizer = build_optimizer(groups, OptimConfig(name=name, lr=0.4))  # type: ignore[arg-type]
    assert type(optimizer).__name__.lower() == name
    for factor in (0.5, 0.25):  # from the base, not from the last value
        set_lr(optimizer, factor)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([0.4 * factor, 0.04 * factor])
    state = optimizer.state_dict()
    assert [group["base_lr"] for group in state["param_groups"]] == [0.4, 0.04]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars"])
def test_a_state_keeps_moments_and_rates_and_leaves_the_device_its_way(name: str) -> None:
    """A rate that is a tensor, as on a GPU, stays the same tensor: a graph reads it."""
    config = OptimConfig(name=name, lr=0.1)  # type: ignore[arg-type]
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    trained = build_optimizer([{"params": first.parameters()}], config)
    first(torch.randn(3, 2)).sum().backward()
    set_lr(trained, 0.5)
    trained.step()
    state = optimizer_state(trained)
    assert state["param_groups"][0]["lr"] == pytest.approx(0.05)

    resumed = build_optimizer([{"params": second.parameters()}], config)
    rate = torch.tensor(0.1)
    resumed.param_groups[0]["lr"] = rate
    set_lr(resumed, 0.5)
    assert resumed.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.05)
    set_lr(resumed, 1.0)
    if name != "lars":
        resumed.param_groups[0]["fused"] = True
    load_optimizer_state(resumed, state)
    assert resumed.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.05)
    assert name == "lars" or resumed.param_groups[0]["fused"] is True
    again = optimizer_state(resumed)["state"]
    for index, moments in state["state"].items():
        for key, value in moments.items():
            assert torch.equal(again[index][key], value)


@pytest.mark.parametrize("kind", ["cosine", "multistep", "constant"])
@pytest.mark.parametrize("per", ["update", "epoch"])
def test_a_restart_is_a_schedule_over_the_updates_that_are_left(kind: Any, per: Any) -> None:
    """As a new CosineAnnealingLR of that length, which IRM's and V-REx's library makes there."""
    options: dict[str, Any] = {"kind": kind, "per": per, "milestones": (3,), "floor": 0.1}
    plain, restarted = ScheduleConfig(**options), ScheduleConfig(**options, restart=4)
    whole = [lr_factor(plain, update, 10, 2) for update in range(10)]
    left = [lr_factor(plain, update, 6, 2) for update in range(6)]
    got = [lr_factor(restarted, update, 10, 2) for update in range(10)]
    assert got == [*whole[:4], *left]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars"])
def test_an_optimizer_that_is_reset_goes_on_as_a_new_one(name: str) -> None:
    config = OptimConfig(name=name, lr=0.1, nesterov=name == "sgd")  # type: ignore[arg-type]
    old, new = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    used, fresh = (build_optimizer([{"params": [p]}], config) for p in (old, new))
    for _ in range(3):
        old.grad = torch.tensor([0.5, 3.0])
        used.step()
    kept = [value for moments in used.state.values() for value in moments.values()]
    reset_state(used)
    assert [v for moments in used.state.values() for v in moments.values()] == kept, "in place"
    with torch.no_grad():
        old.copy_(new)
    for gradient in ([1.0, 2.0], [-1.0, 0.5]):
        for parameter, optimizer in ((old, used), (new, fresh)):
            parameter.grad = torch.tensor(gradient)
            optimizer.step()
        assert torch.equal(old, new)


@pytest.mark.parametrize("decayed", ["all", "matrices"])
def test_batchformer_may_have_a_weight_decay_of_its_own(
    decayed: Literal["all", "matrices"],
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), BatchFormer(8))
    groups = param_groups(model, 0.1)
    config = OptimConfig(weight_decay=5e-4, module_weight_decay=0.01, decayed=decayed)
    optimizer = build_optimizer(groups, config)
    module = {id(p) for p in model[1].parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            expected = 0.01 if id(parameter) in module else 5e-4
            spared = decayed == "matrices" and parameter.ndim == 1
            assert group["weight_decay"] == (0.0 if spared else expected)
    usual = build_optimizer(groups, OptimConfig(weight_decay=5e-4))
    assert {group["weight_decay"] for group in usual.param_groups} == {5e-4}


# LARS.


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
    optimizer = build_optimizer([{"params": parameters}], replace(LARS, decayed=decayed))
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
