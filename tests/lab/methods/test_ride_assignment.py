"""Experts asked in turn: the training target, the answers, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.methods.ride import AssignedExperts, running_means, worth_going_on
from batchformer.lab.models.build import build_model
from batchformer.lab.models.ride import ride_resnet32
from batchformer.nn.randomness import drawing

COUNTS = torch.tensor([50, 20, 10, 5, 1])


def assigned(experts: int = 3, **hyper: Any) -> AssignedExperts:
    with drawing(0, "weights"):
        network = ride_resnet32(5, experts, in_channels=1, widths=(4, 6, 8), depth=8)
    config = MethodConfig(**hyper)
    return AssignedExperts(network, COUNTS, ModuleConfig(), seed=0, hyper=config)


def labelled(method: AssignedExperts, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Even samples are right by the last answer, odd ones by the first; the two differ."""
    first = method.network.classifiers[0]
    with torch.no_grad():
        first.weight.copy_(-method.network.classifiers[1].weight)
        first.scale = 5.0
        logits = method.network.expert_logits(method.network.expert_features(x))
    answers = running_means(logits).argmax(-1)
    even = torch.arange(len(x)) % 2 == 0
    return {"x": x, "y": torch.where(even, answers[-1], answers[0])}


def one_by_one(method: AssignedExperts, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Answers and numbers of experts, sample by sample, all experts computed."""
    features = method.network.expert_features(x)
    logits = method.network.expert_logits(features)
    means, answers, used = running_means(logits), [], []
    for n in range(len(x)):
        e = 0
        while e < len(logits) - 1:
            score = method.routers(e, features[e, n : n + 1], means[e, n : n + 1])
            if torch.sigmoid(score) <= 0.5:
                break
            e += 1
        answers.append(means[e, n])
        used.append(e + 1)
    return torch.stack(answers), used


@torch.no_grad()
def test_answers_are_means_of_the_experts_a_sample_was_shown_to(batch: Any) -> None:
    method = assigned().eval()
    features = method.network.expert_features(batch["x"])
    scores = method.routers(0, features[0], method.network.classify(features[0], 0))
    method.routers.output.bias.sub_(scores.median())  # so that about half go on
    expected, used = one_by_one(method, batch["x"])
    torch.testing.assert_close(method.predict(batch["x"]), expected)
    assert len(set(used)) > 1, "samples differ in how many experts they need"
    assert int(method.asked.sum()) == sum(used)

    network = method.network
    with FlopCounterMode(display=False) as whole:
        network.expert_features(batch["x"][:1])
    with FlopCounterMode(display=False) as trunk:
        network.shared(batch["x"][:1])
    everything, shared = whole.get_total_flops(), trunk.get_total_flops()
    branch = (everything - shared) / 3
    spent = shared + branch * sum(used) / len(used)
    saved = method.remarks()["saved_computation"]
    assert saved == pytest.approx(100 * (1 - spent / everything))
    assert method.remarks() == {}, "counted anew"


@torch.no_grad()
@pytest.mark.parametrize(("bias", "experts"), [(-1e4, 1), (1e4, 3)])
def test_the_ends(batch: Any, bias: float, experts: int) -> None:
    method = assigned().eval()
    method.routers.output.bias.fill_(bias)
    logits = method.network.expert_logits(method.network.expert_features(batch["x"]))
    torch.testing.assert_close(method.predict(batch["x"]), logits[:experts].mean(0))
    saved = method.remarks()["saved_computation"]
    assert saved == pytest.approx(0.0) if experts == 3 else 20 < saved < 67


def test_the_loss_by_hand(batch: Any) -> None:
    method = assigned(router_positive_weight=7.0, router_top=4).train()
    batch = labelled(method, batch["x"])
    features = method.network.expert_features(batch["x"])  # its normalisation is in eval
    means = running_means(method.network.expert_logits(features))
    worth = worth_going_on(means, batch["y"])
    losses = []
    for e in range(2):
        p = torch.sigmoid(method.routers(e, features[e], means[e]))
        losses.append(torch.where(worth[e], -7 * p.log(), -(1 - p).log()))
    assert worth.any() and not worth.all()
    torch.testing.assert_close(method.step(batch)["loss"], torch.stack(losses).mean())


def test_only_routers_are_trained(batch: Any, assert_trained_once: Any) -> None:
    method = assigned()
    assert_trained_once(method, batch)
    assert {n.split(".")[0] for n, p in method.named_parameters() if p.requires_grad} == {"routers"}
    assert not method.train().network.training
    assert assigned(frozen_mode="train").train().network.shared.bn1.training


def test_it_learns_whom_to_send_on(batch: Any) -> None:
    method = assigned(router_positive_weight=1.0).train()
    batch = labelled(method, batch["x"])
    optimizer = torch.optim.Adam(method.routers.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss = method.step(batch)["loss"]
        loss.backward()
        optimizer.step()
    features = method.network.expert_features(batch["x"])
    means = running_means(method.network.expert_logits(features))
    worth = worth_going_on(means, batch["y"]).float()
    constant = F.binary_cross_entropy(torch.full_like(worth, float(worth.mean())), worth)
    assert float(loss.detach()) < 0.5 * float(constant)


def test_resumed_equals_unbroken(assert_resumes: Any) -> None:
    assert_resumes(assigned)


def test_a_network_without_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two experts"):
        AssignedExperts(build_model("digits_net", 5), COUNTS, ModuleConfig(), seed=0)
