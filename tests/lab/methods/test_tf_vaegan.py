"""TF-VAEGAN: its losses by hand, what each step trains, and that unseen classes are learnt."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from batchformer.lab.losses.tf_vaegan import adapted_weight, decoding_error, vae_loss
from batchformer.lab.methods.generated_features import frozen
from helpers import linear_classes
from helpers.linear_classes import (
    ADAM,
    LABELS,
    TRAINED,
    changed,
    features_of,
    generalized,
    one_part,
    optimizer_step,
    snapshot,
)

FEATURES = features_of("tf_vaegan")
PARTS = {"posterior", "generator", "critic", "decoder"}
made = partial(linear_classes.made, "tf_vaegan")


def feed(batch_size: int = 32, times: int = 2) -> Any:
    return linear_classes.feed(batch_size, times, FEATURES)


def part() -> dict[str, Tensor]:
    return one_part(FEATURES)


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.2 * x)


# Losses.


def test_the_error_of_decoded_attributes() -> None:
    decoded, wanted = torch.randn(2, 5, 3, dtype=torch.float64)
    expected = [
        sum(abs(e) ** 3 for e in row) / sum(e**2 for e in row) ** 0.5
        for row in (decoded - wanted).tolist()
    ]
    assert decoding_error(decoded, wanted).item() == pytest.approx(sum(expected) / 5)
    decoded.requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: decoding_error(rows, wanted), (decoded,))


def test_a_row_without_error_has_no_gradient() -> None:
    rows = torch.tensor([[0.6, 0.8], [1.0, 0.0]], requires_grad=True)
    loss = decoding_error(rows, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None and not rows.grad[0].any() and rows.grad[1].isfinite().all()
    assert loss.item() == pytest.approx(0.5 * 2 / 2**0.5)
    with pytest.raises(ValueError, match=r"attributes \(N, A\)"):
        decoding_error(torch.zeros(2, 3), torch.zeros(3))


def test_the_loss_of_the_vae() -> None:
    torch.manual_seed(0)
    made_, x = torch.rand(2, 6, 5, dtype=torch.float64)
    mean, log_variance = torch.randn(2, 6, 3, dtype=torch.float64)
    again = -(x * made_.log() + (1 - x) * (1 - made_).log()).sum(1)
    noise = Normal(mean, (0.5 * log_variance).exp())
    divergence = kl_divergence(noise, Normal(torch.zeros(3).double(), torch.ones(3).double()))
    expected = (again + divergence.sum(1)).mean()
    torch.testing.assert_close(vae_loss(made_, x, mean, log_variance), expected)
    with torch.autocast("cpu", torch.bfloat16):
        half = vae_loss(made_.bfloat16(), x.bfloat16(), mean.bfloat16(), log_variance.bfloat16())
    torch.testing.assert_close(half, expected.float(), rtol=0.02, atol=0.0)


def test_the_weight_of_the_penalty() -> None:
    weight = torch.tensor(10.0)
    for _ in range(10):
        weight = adapted_weight(weight, torch.tensor(0.3))
    assert weight.item() == pytest.approx(3.855, abs=5e-4)
    for penalty, expected in ((1.0501, 11.0), (1.05, 10.0), (1.001, 10.0), (1.0, 10 / 1.1)):
        got = adapted_weight(torch.tensor(10.0), torch.tensor(penalty))
        assert got.item() == pytest.approx(expected)


# Generation and feedback.


def test_features_with_feedback_by_hand() -> None:
    method = made({"feedback": 0.7}).double()
    noise, a = torch.randn(6, 4, dtype=torch.float64), method.attributes[LABELS[:6]]

    def layer(x: Tensor, linear: nn.Linear) -> Tensor:
        return x @ linear.weight.T + linear.bias

    hidden = leaky(layer(torch.cat((noise, a), 1), method.generator.hidden))
    plain = 1 / (1 + (-layer(hidden, method.generator.output)).exp())
    torch.testing.assert_close(method.make(noise, a, False), plain)
    h = leaky(layer(plain, method.decoder.hidden))
    fed = leaky(layer(leaky(layer(h, method.feedback.hidden)), method.feedback.output))
    again = 1 / (1 + (-layer(hidden + 0.7 * fed, method.generator.output)).exp())
    torch.testing.assert_close(method.make(noise, a, True), again)
    decoded = layer(h, method.decoder.output)
    decoded = decoded / decoded.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(method.inputs(plain), torch.cat((plain, decoded, h), 1))


def test_no_gradient_passes_from_the_feedback_into_the_decoder() -> None:
    method = made().train()
    method.make(torch.randn(5, 4), method.attributes[LABELS[:5]], True).sum().backward()
    reached = {name.split(".")[0] for name, p in method.named_parameters() if p.grad is not None}
    assert reached == {"generator", "feedback"}


# Steps.


@pytest.mark.parametrize("with_feedback", [False, True])
def test_the_steps_by_hand(with_feedback: bool) -> None:
    method, batch = made({"adversarial": 3.0, "decoding": 0.5}).train(), part()
    method.begin_epoch(int(with_feedback))
    method.penalty_weight.fill_(7.0)
    for parameter in method.posterior.parameters():
        nn.init.normal_(parameter, std=0.2)  # deviations of its noise that are not nearly one
    x, a = batch["x"], method.attributes[batch["y"]]
    mean, log_variance = method.posterior(x, a)
    drawn = mean + batch["noise"] * (log_variance / 2).exp()
    fake = method.make(drawn, a, with_feedback)
    distance = method.critic(x, a).mean() - method.critic(fake, a).mean()
    between = (batch["share"] * x + (1 - batch["share"]) * fake.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(method.critic(between, a).sum(), between)
    penalty = (slope.square().sum(1).sqrt() - 1).square().mean()
    found = method.step(batch)
    torch.testing.assert_close(found["loss"], 3 * (7 * penalty - distance))
    torch.testing.assert_close((found["distance"], found["penalty"]), (distance, penalty))
    error = decoding_error(method.decoder(x), a)
    torch.testing.assert_close(method.decoder_step(batch)["loss"], 0.5 * error)
    of_made = decoding_error(method.decoder(fake), a)
    vae = vae_loss(fake, x, mean, log_variance)
    expected = vae - 3 * method.critic(fake, a).mean() + 0.5 * of_made
    torch.testing.assert_close(method.generator_step(batch)["loss"], expected)


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_update_is_its_steps_one_after_the_other(epoch: int) -> None:
    """With an Adam of its own for each network, as in the released code."""
    method, other = (made().train() for _ in range(2))
    for one in (method, other):
        one.begin_epoch(epoch)
    batch, optimizers = feed().batch(0), method.optimizers(ADAM)
    torch.manual_seed(7)
    losses = method.update(batch, optimizers, optimizer_step())
    torch.manual_seed(7)
    noise, share = torch.randn(3, 32, 4), torch.rand(2, 32, 1)
    rates = {"posterior": 1e-3, "generator": 1e-3, "critic": 1e-3, "decoder": 1e-3}
    rates["feedback"] = 1e-4
    adam = {
        name: torch.optim.Adam(
            getattr(other, name).parameters(),
            lr=rate,
            betas=(0.9 if name == "posterior" else 0.5, 0.999),
        )
        for name, rate in rates.items()
    }
    penalties, cut = [], {}
    for k in range(2):
        rows = slice(32 * k, 32 * (k + 1))
        cut = {"x": batch["x"][rows], "y": batch["y"][rows], "noise": noise[k], "share": share[k]}
        other.zero_grad()
        other.decoder_step(cut)["loss"].backward()
        adam["decoder"].step()
        other.zero_grad()
        found = other.step(cut)
        found["loss"].backward()
        adam["critic"].step()
        penalties.append(found["penalty"].item())
    mean = sum(penalties) / 2
    assert losses["penalty_weight"].item() == pytest.approx(10 / 1.1 if mean < 1.001 else 11)
    other.penalty_weight.copy_(losses["penalty_weight"])
    other.zero_grad()
    with frozen(other.critic):
        found = other.generator_step({**cut, "noise": noise[2]})
        found["loss"].backward()
    torch.testing.assert_close(losses["generator"], found["loss"].detach())
    for name in ("posterior", "generator", "decoder", *(["feedback"] if epoch else [])):
        adam[name].step()
    for (name, got), wanted in zip(method.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, msg=name)


def test_the_feedback_is_trained_in_every_second_epoch() -> None:
    method = made().train()
    optimizers = method.optimizers(ADAM)
    for epoch, extra in ((0, set()), (1, {"feedback"}), (2, set())):
        method.begin_epoch(epoch)
        assert method.phase() == bool(extra)
        before = snapshot(method)
        method.update(feed().batch(epoch), optimizers, optimizer_step())
        assert changed(method, before) == PARTS | extra
    held = [p for o in optimizers.values() for g in o.param_groups for p in g["params"]]
    names = {name.split(".")[0] for name, p in method.named_parameters() if p.requires_grad}
    assert len(held) == len(set(held)) and names == PARTS | {"feedback", "encoder"}
    assert len(held) == sum(len(list(getattr(method, n).parameters())) for n in PARTS) + 4


# The classifier.


def test_rows_of_the_classifier() -> None:
    method = made()
    rows, y = method.classifier_rows()
    real = int(TRAINED.sum())
    assert rows.shape == (real + 2 * 40, 12 + 5 + 64) and method.mixed_channels == 12
    torch.testing.assert_close(rows[:real, :12], FEATURES[TRAINED])
    assert y[real:].unique().tolist() == [2, 7]
    torch.testing.assert_close(rows[real:], method.inputs(rows[real:, :12]))


def test_unseen_classes_come_to_be_known() -> None:
    own = {"classifier_epochs": 8, "classifier_lr": 0.01, "adversarial": 1.0}
    method = made(own).train()
    optimizers, batches = method.optimizers(replace(ADAM, lr=5e-3)), feed(64)
    torch.manual_seed(0)
    for step in range(40):
        method.begin_epoch(step // 10)
        method.update(batches.batch(step), optimizers, optimizer_step())
    method.before_evaluation()
    tested = generalized(method, FEATURES)
    assert tested["unseen"] > 80 and tested["seen"] > 80, tested
