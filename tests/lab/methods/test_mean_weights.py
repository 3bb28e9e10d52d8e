"""Means of weights: of every update alike, in single precision, in the format of the weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from batchformer.lab.methods.swad import MeanWeights, WeightSums, joined, weights_of


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


def summed(values: list[Tensor], before: int | None) -> MeanWeights:
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


def test_where_the_updates_before_are_not_known_the_last_is_not() -> None:
    one = torch.ones(1)
    assert summed([one, one], None).last is None
    assert summed([one], 0).joined(summed([one, one], None)).last is None
    assert summed([one], None).joined(summed([one, one], 4)).last == 6


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
