"""Batch normalisation that is frozen, computed over parts of a batch, or measured again."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.lab.models.build import build_model
from batchformer.lab.models.kernels import available
from batchformer.lab.models.norms import (
    InParts,
    freeze_norm,
    interleave_rows,
    normalise_in_parts,
    recalibrate_norms,
    restore_rows,
)

# Frozen.


def used(name: str) -> tuple[Any, Tensor]:
    """A network whose statistics are not those it began with, and images for it."""
    torch.manual_seed(0)
    network = build_model(name, 5)
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            nn.init.ones_(module.weight)  # timm's ResNets begin some at 0
    side = 8 if name == "digits_net" else 32
    x = torch.randn(6, 1 if name == "digits_net" else 3, side, side)
    for _ in range(3):
        network.train()(2 * x + 1)
    return network, x


NETWORKS = ["digits_net", "resnet32", "resnet18", "mobilenetv3_small_050"]


@pytest.mark.parametrize("name", NETWORKS)
def test_training_normalises_as_eval_and_only_scale_and_shift_learn(name: str) -> None:
    network, x = used(name)
    dropouts = [m for m in network.modules() if isinstance(m, nn.Dropout)]
    parameters, features = list(network.parameters()), network.eval().forward_features(x)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    freeze_norm(network)
    network.train()
    for module in dropouts:
        module.eval()
    torch.testing.assert_close(network.forward_features(x), features)
    network(x).square().sum().backward()
    assert list(network.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    assert all(a is b for a, b in zip(network.parameters(), parameters, strict=True))
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            assert module.weight.grad is not None and module.bias.grad is not None
            assert module.bias.grad.any()


def test_copies_are_frozen_too_and_twice_is_once() -> None:
    network, x = used("resnet32")
    freeze_norm(network)
    freeze_norm(network)
    twin = copy.deepcopy(network).train()
    before = twin.bn1.running_mean.clone()
    assert torch.equal(twin(x), network.train()(x))
    assert torch.equal(twin.bn1.running_mean, before)
    assert twin.bn1.weight is not network.bn1.weight
    assert not twin.layer1[0].bn1.training and twin.training


def test_the_kernel_for_statistics_of_the_batch_leaves_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(available.available, "unsupported_reason", lambda x: None)
    network: Any = build_model("resnet32", 5).train()
    y = torch.randn(2, 16, 4, 4, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    assert available.norm_unsupported_reason(y, network.bn1) is None
    freeze_norm(network)
    network.train()
    assert available.norm_unsupported_reason(y, network.bn1) is not None
    network.bn1.training = True  # even then
    assert "is not BatchNorm2d itself" in str(available.norm_unsupported_reason(y, network.bn1))


def test_what_cannot_be_frozen_is_named() -> None:
    with pytest.raises(ValueError, match="Sequential has no batch normalisation"):
        freeze_norm(nn.Sequential(nn.LayerNorm(3)))
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="normalisation 1 of Sequential keeps no statistics"):
        freeze_norm(network)
    assert type(network[0]) is nn.BatchNorm1d


# In parts: what a loop over the parts computes.


def gradients(model: nn.Module, *rows: Tensor) -> list[Tensor]:
    return [t.grad for t in (*model.parameters(), *rows) if t.grad is not None]


@settings(max_examples=30)
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
def test_interleaved_rows_are_parts_one_after_the_other(parts: int, rows: int) -> None:
    x = torch.arange(2 * parts * rows).view(-1, 2)
    interleaved = interleave_rows(x, parts)
    for p in range(parts):
        assert torch.equal(interleaved[p::parts], x[p * rows : (p + 1) * rows])
    assert torch.equal(restore_rows(interleaved, parts), x)


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


# Measured again: statistics are plain means over the batches, and weights stay.


def test_means_over_the_batches() -> None:
    torch.manual_seed(0)
    norm, still = nn.BatchNorm1d(3, momentum=0.3), nn.BatchNorm1d(3)
    model = nn.Sequential(norm, still).double().train()
    still.eval()
    for _ in range(4):
        model(torch.randn(8, 3, dtype=torch.float64) + 5)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    batches = torch.randn(6, 8, 3, dtype=torch.float64)
    with torch.no_grad(), recalibrate_norms(model):
        for batch in batches:
            model(batch)
    torch.testing.assert_close(norm.running_mean, batches.mean((0, 1)))
    torch.testing.assert_close(norm.running_var, batches.var(1).mean(0))
    assert norm.momentum == 0.3 and norm.training
    after = model.state_dict()
    changed = {name for name in state if not torch.equal(state[name], after[name])}
    assert changed == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
