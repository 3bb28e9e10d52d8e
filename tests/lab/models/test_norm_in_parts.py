"""Normalisation in parts: what a loop over the parts computes, gradients and all."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from batchformer.lab.models.build import build_model
from batchformer.lab.models.norms import InParts, interleave_rows, normalise_in_parts, restore_rows


def gradients(model: nn.Module, *rows: Tensor) -> list[Tensor]:
    return [t.grad for t in (*model.parameters(), *rows) if t.grad is not None]


@settings(max_examples=30, deadline=None)
@given(
    parts=st.integers(1, 4),
    rows=st.integers(2, 4),
    side=st.sampled_from([(), (3,), (2, 3)]),
    momentum=st.sampled_from([0.1, 1.0, None]),
    affine=st.booleans(),
    tracked=st.booleans(),
)
def test_a_loop_over_the_parts(
    parts: int,
    rows: int,
    side: tuple[int, ...],
    momentum: float | None,
    affine: bool,
    tracked: bool,
) -> None:
    kind = nn.BatchNorm2d if len(side) == 2 else nn.BatchNorm1d
    whole = kind(4, momentum=momentum, affine=affine, track_running_stats=tracked).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.normal_()
    model = nn.Sequential(copy.deepcopy(whole))
    normalise_in_parts(model, parts)
    for _ in range(2):
        x = torch.randn(parts * rows, 4, *side, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        each = [copy.deepcopy(whole) for _ in range(parts)]
        for one in each:
            one.weight, one.bias = whole.weight, whole.bias
        expected = torch.empty_like(x)
        for p, one in enumerate(each):
            expected[p::parts] = one(x[p::parts])
        weight = torch.randn_like(expected)
        whole.zero_grad()
        model.zero_grad()
        expected.backward(weight)  # type: ignore[no-untyped-call]
        got = model(y)
        got.backward(weight)
        torch.testing.assert_close(got, expected)
        for found, wanted in zip(gradients(model, y), gradients(whole, x), strict=True):
            torch.testing.assert_close(found, wanted)
        with torch.no_grad():
            for name, value in whole.named_buffers():
                new = torch.stack([dict(one.named_buffers())[name] for one in each])
                value.copy_(new.double().mean(0))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(model[0].state_dict()[name], value)
    if tracked:
        torch.testing.assert_close(model.eval()(y), whole.eval()(x))


@given(parts=st.integers(1, 5), rows=st.integers(1, 5))
def test_dealt_rows_are_parts_one_after_the_other(parts: int, rows: int) -> None:
    x = torch.arange(2 * parts * rows).view(-1, 2)
    dealt = interleave_rows(x, parts)
    for p in range(parts):
        assert torch.equal(dealt[p::parts], x[p * rows : (p + 1) * rows])
    assert torch.equal(restore_rows(dealt, parts), x)


def test_names_values_and_copies_stay() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    names, norm = list(model.state_dict()), model[1]
    normalise_in_parts(model, 1)
    assert type(model[1]) is nn.BatchNorm2d
    normalise_in_parts(model, 2)
    assert model[1] is norm and isinstance(norm, InParts) and list(model.state_dict()) == names
    x = torch.randn(4, 1, 5, 5)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), copy.deepcopy(model)(x))


def test_what_cannot_be_taken_in_parts_is_refused() -> None:
    timm = pytest.importorskip("timm")
    with pytest.raises(ValueError, match="has a BatchNormAct2d"):
        normalise_in_parts(timm.create_model("efficientnet_b0", num_classes=2), 2)
    with pytest.raises(ValueError, match="Linear has no batch normalisation"):
        normalise_in_parts(nn.Linear(2, 2), 2)


@pytest.mark.parametrize("name", ["digits_net", "resnet18_small"])
def test_whole_networks(name: str) -> None:
    network = build_model(name, 3).double().train()
    channels, side = (1, 8) if name == "digits_net" else (3, 32)
    x = torch.randn(4, channels, side, side, dtype=torch.float64)
    apart = [copy.deepcopy(network)(x[p::2]) for p in range(2)]
    normalise_in_parts(network, 2)
    made = network(x)
    for p in range(2):
        torch.testing.assert_close(made[p::2], apart[p])
