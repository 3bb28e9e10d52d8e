"""CE-GZSL: what each step trains, on what, and that unseen classes come to be known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.losses.ce_gzsl import supervised_contrast
from batchformer.lab.methods.ce_gzsl import CeGzsl
from helpers import linear_classes
from helpers.linear_classes import (
    ADAM,
    ATTRIBUTES,
    FEATURES,
    LABELS,
    SEEN,
    TRAINED,
    UNSEEN,
    WIDTHS,
    feed,
    generalized,
    one_part,
    optimizer_step,
    snapshot,
)

WIDTH = WIDTHS["ce_gzsl"]["embedding"]
made = partial(linear_classes.made, "ce_gzsl")
PLACES: list[dict[str, Any]] = [
    {"enabled": False},
    {"module_at": "embedding"},
    {"module_at": "classifier"},
    {"module_at": "embedding", "trained": False},
    {"module_at": "embedding", "streams": "mixed_only"},
]


def placed(place: dict[str, Any], **changes: Any) -> Any:
    module = {k: v for k, v in place.items() if k != "module_at"}
    return made({k: v for k, v in place.items() if k == "module_at"} | changes, **module)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_parameter_in_one_optimizer(place: dict[str, Any]) -> None:
    method = placed(place)
    optimizers = method.optimizers(ADAM)
    assert list(optimizers) == ["critic", "generator"]
    held = [p for o in optimizers.values() for g in o.param_groups for p in g["params"]]
    wanted = {id(p) for p in method.parameters() if p.requires_grad}
    assert len(held) == len(wanted) and {id(p) for p in held} == wanted
    generator = [p for g in optimizers["generator"].param_groups for p in g["params"]]
    assert {id(p) for p in generator} == {id(p) for p in method.generator.parameters()}
    assert all(g["betas"] == (0.5, 0.999) for o in optimizers.values() for g in o.param_groups)


def test_the_critics_loss_by_hand() -> None:
    method = made(dropout=0.0).train()
    part = one_part()
    x, y, a = part["x"], part["y"], ATTRIBUTES[part["y"]]
    fake = method.generator(part["noise"], a).detach()
    distance = method.critic(x, a).mean() - method.critic(fake, a).mean()
    between = (part["share"] * x + (1 - part["share"]) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(method.critic(between, a).sum(), between)
    penalty = (slope.square().sum(1).sqrt() - 1).square().mean()
    plain = method.embedding(x)
    rows, twice = torch.cat((plain, method.encoder.mix(plain))), torch.cat((y, y))
    instance = supervised_contrast(method.embedding.direction(rows), twice, 0.1)
    scores = method.comparator(rows, ATTRIBUTES[SEEN])
    places = torch.tensor([SEEN.tolist().index(c) for c in twice.tolist()])
    classes = F.cross_entropy(scores / 0.1, places)
    losses = method.step(part)
    expected = {
        "loss": -distance + 10 * penalty + instance + classes,
        "distance": distance,
        "penalty": penalty,
        "instance": instance,
        "classes": classes,
    }
    assert set(losses) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, msg=name)


def test_the_generators_loss_by_hand() -> None:
    method = made({"contrast": 0.3}).train()
    part = one_part()
    y, a = part["y"], ATTRIBUTES[part["y"]]
    fake = method.generator(part["noise"], a)
    h, real = method.embedding(fake), method.embedding(part["x"])  # plain: no mixed stream
    z = method.embedding.direction(torch.cat((h, real)))
    instance = supervised_contrast(z, torch.cat((y, y)), 0.1)
    places = torch.tensor([SEEN.tolist().index(c) for c in y.tolist()])
    classes = F.cross_entropy(method.comparator(h, ATTRIBUTES[SEEN]) / 0.1, places)
    expected = -method.critic(fake, a).mean() + 0.3 * (instance + classes)
    torch.testing.assert_close(method.generator_step(part)["loss"], expected)


@pytest.mark.parametrize(("scale", "factor"), [("mean", 1.0), ("sum", 2.0)])
def test_scales_of_two_streams(scale: str, factor: float) -> None:
    method = made(loss_scale=scale, dropout=0.0).train()
    part = one_part()
    instance, classes = method.contrasts(method.streams(method.embedding(part["x"])), part["y"])
    usual = made(dropout=0.0).train()
    wanted = usual.contrasts(usual.streams(usual.embedding(part["x"])), part["y"])
    torch.testing.assert_close((instance, classes), tuple(factor * value for value in wanted))


def test_an_update_is_its_steps_one_after_the_other() -> None:
    """Several critic steps on the parts of the rows, each with gradients of its own alone."""
    method, other = (made({"critic_steps": 3}, dropout=0.0).train() for _ in range(2))
    batch = feed(times=3).batch(0)
    optimizers = method.optimizers(ADAM)
    torch.manual_seed(7)
    losses = method.update(batch, optimizers, optimizer_step())
    torch.manual_seed(7)
    noise, share = torch.randn(4, 32, 4), torch.rand(3, 32, 1)
    judged = (other.critic, other.embedding, other.comparator)
    groups: list[Any] = [{"params": list(part.parameters())} for part in judged]
    groups.append({"params": list(other.encoder.parameters()), "lr": 1e-4})
    judges = torch.optim.Adam(groups, lr=1e-3, betas=(0.5, 0.999))
    made_by = torch.optim.Adam(other.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    part: dict[str, Tensor] = {}
    for k in range(3):
        cut = slice(32 * k, 32 * (k + 1))
        part = {"x": batch["x"][cut], "y": batch["y"][cut], "noise": noise[k], "share": share[k]}
        other.zero_grad()
        expected = other.step(part)["loss"]
        expected.backward()
        judges.step()
    torch.testing.assert_close(losses["loss"], expected.detach())
    other.zero_grad()
    expected = other.generator_step({**part, "noise": noise[3]})["loss"]
    expected.backward()
    made_by.step()
    torch.testing.assert_close(losses["generator"], expected.detach())
    for (name, got), wanted in zip(method.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, msg=name)


def test_arms_share_initial_weights_and_noise() -> None:
    plain, mixed = made(enabled=False), made()
    assert plain.encoder is None and mixed.encoder is not None
    for name, value in plain.state_dict().items():
        assert torch.equal(value, mixed.state_dict()[name]), name
    # The critic sees nothing of the embedding; dropout between its steps changes no noise.
    batch, ends = feed().batch(0), []
    for method in (plain, mixed):
        torch.manual_seed(0)
        method.train().update(batch, method.optimizers(ADAM), optimizer_step())
        ends.append(snapshot(method.critic))
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


@pytest.mark.parametrize("place", PLACES[:2], ids=str)
def test_unseen_classes_come_to_be_known(place: dict[str, Any]) -> None:
    method = placed(place, classifier_epochs=40).train()
    torch.manual_seed(0)
    optimizers, batches = method.optimizers(replace(ADAM, lr=5e-3)), feed(64)
    for step in range(100):
        method.update(batches.batch(step), optimizers, optimizer_step())
    judged = [method]
    if method.encoder is None:  # what was trained is the same with BatchFormer in the classifier
        judged.append(placed(PLACES[2], classifier_epochs=40).train())
        judged[1].load_state_dict(method.state_dict())
    for one in judged:
        one.before_evaluation()
        tested = generalized(one)
        # One of ten classes is right by chance.
        assert tested["unseen"] > 50 and tested["seen"] > 50, tested
    assert len(judged) == 1 or not torch.equal(*(one.classifier.weight for one in judged))


@pytest.mark.parametrize("place", PLACES[1:3], ids=str)
def test_the_classifier_depends_on_the_weights_alone(place: dict[str, Any]) -> None:
    method = placed(place).train()
    torch.manual_seed(0)
    method.before_evaluation()
    first = method.classifier.weight.clone()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    method.before_evaluation()
    assert torch.equal(first, method.classifier.weight) and first.any()
    assert torch.equal(state, torch.get_rng_state())
    restored = placed(place)
    restored.load_state_dict(method.state_dict())
    x = FEATURES[:5]
    assert torch.equal(restored.eval().predict(x), method.eval().predict(x))
    assert torch.equal(method.deployed()(x), method.predict(x))


def test_rows_of_the_classifier() -> None:
    method = made()
    h, y = method.classifier_rows()
    real = int(TRAINED.sum())
    assert h.shape == (real + 2 * 40, WIDTH) and torch.equal(y[:real], LABELS[TRAINED])
    assert y[real:].bincount(minlength=10).tolist() == [0, 0, 40, 0, 0, 0, 0, 40, 0, 0]
    torch.testing.assert_close(h[:real], method.embedding(FEATURES[TRAINED]))
    assert not h.requires_grad


def test_the_place_of_batchformer() -> None:
    embedding, at = made(), {"module_at": "classifier"}
    classifier, plain = made(at), made(at, enabled=False)
    assert embedding.encoder is not None and classifier.encoder is None
    x = FEATURES[:8]
    assert embedding.streams(embedding.embedding(x)).shape == (16, WIDTH)
    assert classifier.streams(classifier.embedding(x)).shape == (8, WIDTH)
    weights = []
    for method in (classifier, plain):
        method.train().before_evaluation()
        weights.append(method.classifier.weight.clone())
    assert not torch.equal(*weights), "its mixed stream trains the classifier"
    embedding.train().before_evaluation()
    assert torch.equal(embedding.classifier.weight, weights[1]), "and on the embedding it does not"


def test_the_data_is_not_in_checkpoints() -> None:
    kept = {name.split(".")[0] for name in made().state_dict()}
    parts = {"generator", "critic", "embedding", "comparator"}
    assert kept == parts | {"encoder", "classifier"}


def test_labels_of_unseen_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="seen classes only"):
        options = {"module": ModuleConfig(), "seed": 0, "hyper": MethodConfig()}
        CeGzsl(FEATURES, ATTRIBUTES, labels=LABELS, seen=SEEN, unseen=UNSEEN, **options)
