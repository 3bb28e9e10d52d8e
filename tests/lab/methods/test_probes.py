"""A linear probe and nearest neighbours on frozen features, without BatchFormer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.methods.training_images import Bank
from batchformer.lab.metrics.representation import votes


@pytest.mark.parametrize("name", ["linear_probe", "knn"])
def test_no_batchformer_whatever_the_module_says(make: Any, batch: Any, name: str) -> None:
    module = {"streams": "mixed_only", "loss_scale": "official", "mixed_weight": 0.5}
    method, baseline = make(name, **module), make(name, enabled=False)
    assert method.encoder is None
    state, wanted = method.state_dict(), baseline.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[key], wanted[key]) for key in state)
    losses = [one.train().step(batch)["loss"] for one in (method, baseline)]
    assert losses[0] == losses[1]
    assert torch.equal(*(one.predict(batch["x"]) for one in (method, baseline)))


def test_the_classifier_begins_anew(make: Any) -> None:
    method = make("linear_probe")
    weight = method.network.fc.weight
    assert weight.std().item() == pytest.approx(0.01, rel=0.15) and abs(weight.mean()) < 0.002
    assert not method.network.fc.bias.any()
    assert torch.equal(weight, make("linear_probe").network.fc.weight)


def test_only_the_classifier_moves_and_statistics_do_not(
    make: Any, batch: Any, update: Any
) -> None:
    for mode in ("eval", "train"):  # frozen_mode is for other methods
        method = make("linear_probe", {"frozen_mode": mode}).train()
        assert not any(part.training for part in method.network.modules())
        before = {key: value.clone() for key, value in method.state_dict().items()}
        update(method, batch, OptimConfig(lr=0.5))
        after = method.state_dict()
        moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
        assert moved == {"network.fc.weight", "network.fc.bias"}


def test_the_first_loss_is_that_of_a_linear_classifier(make: Any, batch: Any) -> None:
    method = make("linear_probe").train()
    network = method.network
    with torch.no_grad():
        features = network.forward_features(batch["x"])
        logits = features @ network.fc.weight.T
        picked = logits.log_softmax(1).gather(1, batch["y"][:, None])
    torch.testing.assert_close(method.step(batch)["loss"], -picked.mean())


IMAGES = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(7))


def scaled(make: Any, times: float = 1.0) -> Any:
    """A probe of unit scale on features that are so many times as long."""
    labels = torch.zeros(12, dtype=torch.int64)
    options = {"bank": Bank(labels, 0, lambda: [(IMAGES, labels)])}
    method = make("linear_probe", {"probe_scale": "unit"}, options)
    with torch.no_grad():
        method.network.hidden.weight.mul_(times)
        method.network.hidden.bias.mul_(times)
    return method


@pytest.fixture
def trained(batch: Any, update: Any) -> Any:
    """Its answers after three updates."""

    def answers(method: Any) -> Tensor:
        method.train().begin_training(3)
        update(method, batch, OptimConfig(lr=0.5), times=3)
        found: Tensor = method.eval().predict(batch["x"])
        return found

    return answers


def test_features_of_unit_scale(make: Any, batch: Any) -> None:
    method = scaled(make)
    method.begin_training(1)
    with torch.no_grad():
        features = method.network.forward_features(IMAGES)
        squares = [sum(float(value) ** 2 for value in row) for row in features]
        length = (sum(squares) / len(squares)) ** 0.5
        assert float(method.length) == pytest.approx(length) != pytest.approx(1)
        weight, bias = method.network.fc.weight, method.network.fc.bias
        wanted = method.network.forward_features(batch["x"]) / length @ weight.T + bias
        torch.testing.assert_close(method.predict(batch["x"]), wanted)
        torch.testing.assert_close(method.train()(batch["x"]), wanted)


def test_longer_features_are_probed_alike(make: Any, trained: Any) -> None:
    torch.testing.assert_close(*(trained(scaled(make, times)) for times in (1.0, 64.0)))
    plain = [make("linear_probe") for _ in range(2)]
    with torch.no_grad():
        plain[1].network.hidden.weight.mul_(64.0)
        plain[1].network.hidden.bias.mul_(64.0)
    assert not torch.allclose(*map(trained, plain), atol=0.1)


def test_the_exported_network_and_a_loaded_state_answer_alike(
    make: Any, batch: Any, trained: Any
) -> None:
    method, again = scaled(make), scaled(make).eval()
    answers = trained(method)
    again.load_state_dict(method.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(method.deployed()(batch["x"]), answers)
        assert torch.equal(again.predict(batch["x"]), answers)
    assert method.deployed() is not method.network and "length" in method.state_dict()
    assert "length" not in make("linear_probe").state_dict(), "older runs go on"


def test_unit_scale_without_images_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="was given no bank"):
        make("linear_probe", {"probe_scale": "unit"}, {"bank": None}).begin_training(1)
    with pytest.raises(ValueError, match="all features of the training images are 0"):
        scaled(make, 0.0).begin_training(1)


def test_a_scaled_probe_resumes(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: scaled(make))


LABELS = torch.arange(12) % 5


class Counted:
    """Twelve images, and how often they were asked for."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(5)
        self.images = torch.randn(12, 1, 8, 8, generator=draw)
        self.asked = 0

    def __call__(self, extract: Any) -> tuple[Tensor, Tensor]:
        self.asked += 1
        return extract(self.images), LABELS


def made(make: Any, hyper: Any = None) -> Any:
    return make("knn", hyper, {"bank": Counted()})


@pytest.mark.parametrize("k", [1, 4, 1000])
def test_answers_are_the_shares_of_the_votes(make: Any, batch: Any, k: int) -> None:
    method = made(make, {"neighbours": k, "vote_temperature": 0.5}).eval()
    method.before_evaluation()
    with torch.no_grad():
        features = method.network.forward_features(batch["x"])
        bank = method.network.forward_features(method.bank.images)
    wanted = votes(features, bank, LABELS, 5, min(k, 12), 0.5)
    found = method.predict(batch["x"])
    torch.testing.assert_close(found.softmax(1), wanted / wanted.sum(1, keepdim=True))
    assert found.isfinite().all() and torch.equal(found.argmax(1), wanted.argmax(1))


def test_the_bank_is_no_part_of_the_state_and_filled_once_for_given_weights(
    make: Any, batch: Any
) -> None:
    method = made(make)
    first = method.predict(batch["x"])
    method.before_evaluation()
    method.predict(batch["x"])
    assert method.bank.asked == 1
    state = {key: value.clone() for key, value in method.state_dict().items()}
    assert not any(key.startswith("bank") for key in state)
    state["network.conv1.weight"] += 1
    method.load_state_dict(state)
    other = method.predict(batch["x"])
    assert method.bank.asked == 2 and not torch.equal(first, other)


@pytest.mark.parametrize("name", ["linear_probe", "knn"])
def test_the_network_is_in_eval_from_the_beginning(make: Any, name: str) -> None:
    assert not any(part.training for part in make(name).network.modules())


def test_half_precision_changes_nothing(make: Any, batch: Any) -> None:
    method = made(make)
    plain = method.predict(batch["x"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(method.predict(batch["x"]), plain)


def test_votes_are_not_lost_on_export(make: Any) -> None:
    with pytest.raises(ValueError, match="Export the run that this one starts from"):
        made(make).deployed()


def test_neighbours_resume(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: made(make))
