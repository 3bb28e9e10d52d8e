"""Sums and means of weights, and batch normalisation recalibrated for them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from batchformer.lab.engine.method import Method
from batchformer.lab.methods.swad import (
    MeanWeights,
    WeightSums,
    joined,
    recalibrate_batch_norm,
    weights_of,
)


def test_sums_take_the_format_of_the_weights() -> None:
    conv = nn.Conv2d(3, 5, 3)
    method = nn.ModuleList([conv, WeightSums(list(conv.parameters()))])
    method.to(memory_format=torch.channels_last)
    sums: WeightSums = method[1]  # type: ignore[assignment]
    assert sums.sums[0].stride() == conv.weight.stride() and not conv.weight.is_contiguous()
    sums.add(list(conv.parameters()))
    sums.add(list(conv.parameters()))
    mean = sums.mean()
    assert mean is not None and mean.updates == 2
    torch.testing.assert_close(mean.weights[0], conv.weight.detach())


def test_sums_are_single_precision_whatever_the_weights_are() -> None:
    half = torch.full((2,), 1.0, dtype=torch.bfloat16)
    sums = WeightSums([half])
    for _ in range(300):  # beyond 256 a sum in bfloat16 would stand still
        sums.add([half])
    assert sums.sums[0].tolist() == [300.0, 300.0]


def summed(values: list[Tensor], before: int) -> MeanWeights:
    sums = WeightSums([values[0]])
    for value in values:
        sums.add([value])
    mean = sums.mean(before)
    assert mean is not None
    return mean


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99))
def test_segments_join_to_the_mean_over_their_updates(lengths: list[int], seed: int) -> None:
    draws = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(seed))
    mean, done = None, 7
    for part in torch.split(draws, lengths):
        mean = joined(mean, summed(list(part), done))
        done += len(part)
    assert mean is not None and mean.updates == len(draws) and mean.last == 7 + len(draws)
    torch.testing.assert_close(mean.weights[0].double(), draws.double().mean(0), atol=1e-6, rtol=0)


def test_sums_begin_anew_in_the_same_place() -> None:
    sums = WeightSums([torch.ones(2)])
    assert sums.mean() is None
    sums.add([torch.full((2,), 4.0)])
    before = sums.mean()
    place = sums.sums[0].data_ptr()
    sums.clear()
    assert sums.mean() is None and sums.sums[0].data_ptr() == place
    assert before is not None and before.weights[0].tolist() == [4.0, 4.0], "a copy"


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_are_the_parameters_that_have_a_mean(frozen: bool) -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).requires_grad_(not frozen)
    network.register_parameter("table", nn.Parameter(torch.arange(3), requires_grad=False))
    found = weights_of(network)
    assert [tuple(weight.shape) for weight in found] == [(3, 2), (3,), (3,), (3,)]


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
        recalibrate_batch_norm(net, Batches())
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
    recalibrate_batch_norm(net, Long())
    assert asked == list(range(100)) and torch.equal(before, torch.get_rng_state())


def test_what_predictions_were_like_meanwhile_is_forgotten() -> None:
    net = Net()
    recalibrate_batch_norm(net, Batches())
    assert net.remarks() == {"asked": 0}


def test_without_normalisation_nothing_is_computed() -> None:
    net = Net()
    net.body[1] = nn.Identity()
    recalibrate_batch_norm(net, Batches())
    assert net.asked == 0 and not any(module.training for module in net.modules())
