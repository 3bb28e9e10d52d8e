"""Nearest neighbours: nothing is trained, and answers are the votes of the bank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.metrics.representation import votes

CPU = torch.device("cpu")
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


def made(make: Any, hyper: Any = None, **module: Any) -> Any:
    return make("knn", hyper, {"bank": Counted()}, **module)


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


def test_an_image_of_the_bank_is_its_own_nearest(make: Any) -> None:
    method = made(make, {"neighbours": 1})
    assert method.predict(method.bank.images).argmax(1).tolist() == LABELS.tolist()


def test_nothing_is_trained(make: Any, batch: Any) -> None:
    method = made(make).train()
    assert not method.network.training and not any(p.requires_grad for p in method.parameters())
    before = {key: value.clone() for key, value in method.state_dict().items()}
    optimizers = method.optimizers(OptimConfig())
    assert optimizers == {}
    losses = method.update(batch, optimizers, OptimizerStep(TrainConfig(), CPU))
    after = method.state_dict()
    assert losses["loss"].isfinite() and before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


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


def test_half_precision_changes_nothing(make: Any, batch: Any) -> None:
    method = made(make)
    plain = method.predict(batch["x"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(method.predict(batch["x"]), plain)


def test_answers_are_of_one_sample_alone(make: Any, batch: Any) -> None:
    method = made(make, {"neighbours": 3})
    whole, alone = method.predict(batch["x"]), method.predict(batch["x"][3:4])
    torch.testing.assert_close(whole[3:4], alone)


def test_no_batchformer_whatever_the_module_says(make: Any, batch: Any) -> None:
    method = made(make, attend="self", loss_scale="official")
    assert method.encoder is None
    assert torch.equal(method.predict(batch["x"]), made(make, enabled=False).predict(batch["x"]))


def test_the_network_is_in_eval_from_the_beginning(make: Any) -> None:
    assert not any(part.training for part in made(make).network.modules())


def test_resumed_equals_unbroken(make: Any, assert_resumes: Any) -> None:
    assert_resumes(lambda: made(make))
