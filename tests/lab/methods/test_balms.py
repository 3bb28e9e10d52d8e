"""The meta sampler: its draws, its gradient by finite differences, its two updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optim import set_lr
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.balms import ClassSampler

COUNTS = torch.tensor([50, 20, 10, 5, 1])
CPU = torch.device("cpu")


def test_weights_begin_in_proportion_to_a_power_of_the_counts() -> None:
    weights = ClassSampler(COUNTS, power=0.3).logits.detach().sigmoid()
    torch.testing.assert_close(weights / weights[-1], COUNTS.float() ** -0.3)
    assert float(weights[0] + weights[-1]) == pytest.approx(1)
    assert ClassSampler(torch.tensor([4, 0, 2]), 1.0).logits.isfinite().all()


def test_weights_of_places_begin_as_in_the_released_code() -> None:
    """The rarest of 5 images at 0.888, the most frequent of 4,980 at 0.112."""
    weights = ClassSampler(torch.tensor([4980, 100, 5]), power=0.3).logits.detach().sigmoid()
    assert weights[::2].tolist() == pytest.approx([0.112, 0.888], abs=5e-4)


def test_draws_follow_the_weights() -> None:
    sampler = ClassSampler(torch.tensor([8, 1]), power=1.0)  # weights 1/9 and 8/9
    torch.manual_seed(0)
    labels = torch.tensor([0] * 64 + [1] * 8)
    draws = torch.cat([sampler(labels).detach() for _ in range(100)])
    assert torch.equal(draws.sum(1), torch.ones(7200)) and set(draws.unique().tolist()) == {0, 1}
    share = float(draws[:, 64:].sum() / 7200)
    assert share == pytest.approx(0.5, abs=0.03), "64 samples of weight 1/9 against 8 of 8/9"


def trial_then_judge(
    method: Any, batch: Any, multiplicity: Tensor, streams: str = "both", rate: float = 0.5
) -> Tensor:
    """The outer loss with the trial step written out: gradients of softmax by hand."""
    network = method.network
    features = network.forward_features(batch["x"])
    meta = network.forward_features(batch["meta_x"])
    weight, bias = network.fc.weight.detach(), network.fc.bias.detach()
    p = (features @ weight.T + bias + COUNTS.log()).softmax(1) - F.one_hot(batch["y"], 5)
    p = p * multiplicity[:, None] / len(p)
    weight, bias = weight - rate * p.T @ features, bias - rate * p.sum(0)
    rows = meta
    if method.encoder is not None:
        found = {"plain": [meta], "mixed": [method.encoder.mix(meta)]}
        rows = torch.cat(found.get(streams) or found["plain"] + found["mixed"])
    y = batch["meta_y"].repeat(len(rows) // len(meta))
    return F.cross_entropy(rows @ weight.T + bias, y)


def judged(method: Any, batch: Any, draws: Tensor, optimizer: Any = None) -> Tensor:
    features, meta = (method.features(batch[k]) for k in ("x", "meta_x"))
    optimizer = optimizer or method.optimizers(OptimConfig())["main"]
    loss: Tensor = method.meta_loss(draws, features, batch["y"], meta, batch["meta_y"], optimizer)
    return loss


def in_double(batch: Any) -> Any:
    return {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}


@pytest.mark.parametrize(
    ("enabled", "streams"), [(False, "both"), (True, "both"), (True, "plain"), (True, "mixed")]
)
def test_the_outer_loss_by_hand(make: Any, batch: Any, enabled: bool, streams: str) -> None:
    hyper = {"inner_lr": 0.5, "meta_streams": streams}
    method = make("balms", hyper, enabled=enabled, dropout=0.0).train()
    draws = method.sampler(batch["y"])
    expected = trial_then_judge(method, batch, draws.sum(0), streams)
    torch.testing.assert_close(judged(method, batch, draws), expected)


def test_the_gradient_passes_by_the_drawn_samples_alone(make: Any, batch: Any) -> None:
    """By finite differences for what was drawn, and 0 elsewhere, as the released code has it."""
    method = make("balms", {"inner_lr": 0.5}, enabled=False).double().train()
    batch = in_double(batch)
    drawn = torch.tensor([0, 9, 9, 4, 2, 7, 1, 9, 5, 0])
    draws = F.one_hot(drawn, 10).double().requires_grad_()
    (gradient,) = torch.autograd.grad(judged(method, batch, draws), [draws])
    assert torch.equal(gradient != 0, draws.detach().bool())
    for i in (0, 3, 7):
        step = torch.zeros(10, dtype=torch.float64)
        step[drawn[i]] = 1e-5
        up, down = (
            trial_then_judge(method, batch, draws.detach().sum(0) + s * step) for s in (1, -1)
        )
        slope = float(up - down) / 2e-5
        assert float(gradient[i, drawn[i]]) == pytest.approx(slope, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_the_trial_step_is_the_one_that_sgd_takes_next(
    make: Any, batch: Any, factor: float, nesterov: bool
) -> None:
    """With the momentum of earlier updates, decay and the scheduled rate; nothing moves by it."""
    method, batch = make("balms", enabled=False).double().train(), in_double(batch)
    optim = OptimConfig(lr=0.5, momentum=0.9, weight_decay=0.1, nesterov=nesterov)
    optimizers, optimizer_step = method.optimizers(optim), OptimizerStep(TrainConfig(), CPU)
    classifier, main = method.network.fc, optimizers["main"]
    draws = F.one_hot(torch.tensor([9, 4, 6, 8, 0, 1, 9, 9, 4, 5]), 10).double()
    features, meta = (method.features(batch[k]) for k in ("x", "meta_x"))
    drawn = {"features": features[draws.argmax(1)], "y": batch["y"][draws.argmax(1)]}
    for number in range(3):  # the first has no velocity yet
        set_lr(main, factor if number else 1.0)
        before = copy.deepcopy(classifier.state_dict())
        got = judged(method, batch, draws, main)
        assert all(torch.equal(v, before[k]) for k, v in classifier.state_dict().items())
        optimizer_step.minimise(method.step, drawn, main, list(classifier.parameters()))
        expected = F.cross_entropy(classifier(meta), batch["meta_y"])
        torch.testing.assert_close(got, expected.detach())


def test_the_class_weights_learn_at_a_constant_rate(make: Any, batch: Any) -> None:
    """The loop scales all optimizers by the schedule; the first step of Adam is its rate."""
    method = make("balms", {"sampler_lr": 0.25}, enabled=False).train()
    optimizers, optimizer_step = method.optimizers(OptimConfig()), OptimizerStep(TrainConfig(), CPU)
    for optimizer in optimizers.values():
        set_lr(optimizer, 0.5)
    before = method.sampler.logits.detach().clone()
    method.update(batch, optimizers, optimizer_step)
    moved = (method.sampler.logits.detach() - before).abs()
    assert float(moved.max()) == pytest.approx(0.25, rel=1e-3)
    assert optimizers["main"].param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_update_moves_classifier_sampler_and_encoder(
    make: Any, batch: Any, update: Any, dtype: torch.dtype
) -> None:
    method = make("balms").to(dtype)
    before = {k: v.clone() for k, v in method.state_dict().items()}
    losses = update(method, in_double(batch) if dtype == torch.float64 else batch)
    assert set(losses) == {"loss", "meta"} and all(v.isfinite() for v in losses.values())
    assert losses["loss"].dtype == dtype
    changed = {k for k, v in method.state_dict().items() if not torch.equal(v, before[k])}
    assert {"sampler.logits", "network.fc.weight", "network.fc.bias"} <= changed
    assert any(k.startswith("encoder.") for k in changed)
    assert "network.conv1.weight" not in changed


def test_an_update_trains_on_what_was_drawn(make: Any, batch: Any, update: Any) -> None:
    """The sampler can draw the last class alone, which has one sample here."""
    method = make("balms", enabled=False).train()
    with torch.no_grad():
        method.sampler.logits.fill_(-80.0)[4] = 80.0
    features, y = method.features(batch["x"])[[9] * 10], torch.full((10,), 4)
    before = [p.detach().clone().requires_grad_() for p in method.network.fc.parameters()]
    expected = F.cross_entropy(F.linear(features, *before) + COUNTS.log(), y)
    gradients = torch.autograd.grad(expected, before)
    losses = update(method, batch, OptimConfig(lr=0.1, momentum=0.0, weight_decay=0.0))
    torch.testing.assert_close(losses["loss"], expected)
    for new, old, gradient in zip(method.network.fc.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(new, old - 0.1 * gradient)


def test_sampling_weights_rise_for_the_class_that_the_judge_needs(
    make: Any, batch: Any, update: Any
) -> None:
    """All judges are of the rarest class: being drawn more often is what helps it."""
    hyper = {"sampler_lr": 0.05, "inner_lr": 1.0}
    method = make("balms", hyper, enabled=False).train()
    rare = {**batch, "meta_x": batch["x"][9:].repeat(4, 1, 1, 1), "meta_y": torch.full((4,), 4)}
    before = method.sampler.logits.detach().clone()
    torch.manual_seed(0)
    update(method, rare, OptimConfig(lr=1e-3), times=30)
    moved = method.sampler.logits.detach() - before
    assert float(moved[4]) > 0.2 and float(moved[4]) == float(moved.max())
