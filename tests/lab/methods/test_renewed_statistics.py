"""Statistics of normalisation measured anew: against torch's own, and that nothing is drawn."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from batchformer.lab.engine.method import Method
from batchformer.lab.methods.swad import renew_statistics


class Net(Method):
    """Normalisation between two layers, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.4))
        self.head, self.asked = nn.Linear(6, 3), 0

    def predict(self, x: Tensor) -> Tensor:
        self.asked += 1
        logits: Tensor = self.head(self.body(x))
        return logits

    def remarks(self) -> dict[str, float]:
        asked, self.asked = self.asked, 0
        return {"asked": asked}


class Batches:
    per_epoch = 3

    def batch(self, step: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(step)
        return {"x": torch.randn(8, 4, generator=draw) * (1 + step % self.per_epoch)}


def test_statistics_are_those_that_torch_computes() -> None:
    net = Net()
    expected = copy.deepcopy(net.body[:2])
    update_bn([Batches().batch(step)["x"] for step in range(3)], expected)
    for batches_tracked in (0, 17):
        norm: Any = net.body[1]
        norm.num_batches_tracked.fill_(batches_tracked)
        norm.running_mean.fill_(5.0)
        renew_statistics(net, Batches())
        theirs: Any = expected[1]
        torch.testing.assert_close(norm.running_mean, theirs.running_mean)
        torch.testing.assert_close(norm.running_var, theirs.running_var)
        assert norm.momentum == 0.1 and int(norm.num_batches_tracked) == 3
        assert not any(module.training for module in net.modules())


def test_statistics_are_of_so_many_batches_and_draw_nothing() -> None:
    asked: list[int] = []

    class Long(Batches):
        per_epoch = 250

        def batch(self, step: int) -> dict[str, Any]:
            asked.append(step)
            return super().batch(step)

    net, before = Net(), torch.get_rng_state()
    renew_statistics(net, Long())
    assert asked == list(range(100)) and torch.equal(before, torch.get_rng_state())


def test_what_predictions_were_like_meanwhile_is_forgotten() -> None:
    net = Net()
    renew_statistics(net, Batches())
    assert net.remarks() == {"asked": 0}


def test_without_normalisation_nothing_is_computed() -> None:
    net = Net()
    net.body[1] = nn.Identity()
    renew_statistics(net, Batches())
    assert net.asked == 0 and not any(module.training for module in net.modules())
