"""Normalisation over ranks: on one rank it is torch's own, and a model keeps all its names.

What several ranks make of it is in test_parallel.py.
"""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from batchformer.lab.engine.distributed import sync_norm
from batchformer.lab.engine.distributed.sync_norm import SyncNorm, synchronise_norms

CPU = torch.device("cpu")


@settings(max_examples=30)
@given(
    rows=st.integers(2, 9),
    side=st.sampled_from([(), (3,), (2, 3)]),
    momentum=st.sampled_from([0.1, 1.0, None]),
    affine=st.booleans(),
)
def test_one_rank_has_what_torch_has(
    rows: int, side: tuple[int, ...], momentum: float | None, affine: bool
) -> None:
    kind = nn.BatchNorm2d if len(side) == 2 else nn.BatchNorm1d
    torchs = kind(4, momentum=momentum, affine=affine).double()
    ours = SyncNorm.of(copy.deepcopy(torchs))
    for _ in range(3):
        x = torch.randn(rows, 4, *side, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, got = torchs(x), ours(y)
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)
        weight = torch.randn_like(expected)
        (expected * weight).sum().backward()
        (got * weight).sum().backward()
        torch.testing.assert_close(y.grad, x.grad, atol=1e-9, rtol=1e-9)
    for one, other in zip(torchs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=1e-9, rtol=1e-9)
    for name, value in torchs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(ours.eval()(y), torchs.eval()(x), atol=1e-10, rtol=1e-10)


def test_half_precision_is_summed_in_single() -> None:
    norm = SyncNorm.of(nn.BatchNorm1d(1))
    x = torch.full((4096, 1), 1.5, dtype=torch.bfloat16)
    out = norm(x)
    assert out.dtype == torch.bfloat16 and norm.running_mean is not None
    assert norm.running_mean.item() == pytest.approx(0.15)


def test_a_model_keeps_its_names_its_parameters_and_what_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = nn.BatchNorm1d(4)
    inner = nn.Sequential(nn.BatchNorm1d(4), shared)
    model = nn.Sequential(nn.Linear(4, 4), shared, inner)
    before, state = dict(model.named_parameters()), list(model.state_dict())
    synchronise_norms(model, CPU)
    assert model[1] is shared, "on one rank nothing changes"
    monkeypatch.setattr(sync_norm, "world_size", lambda: 2)
    synchronise_norms(model, CPU)
    assert isinstance(model[1], SyncNorm) and model[1] is inner[1]
    assert model[1].running_mean is shared.running_mean
    assert list(model.state_dict()) == state
    assert all(before[name] is value for name, value in model.named_parameters())
    first = model[1]
    synchronise_norms(model, CPU)
    assert model[1] is first, "twice is once"


def test_what_has_no_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="rows and channels"):
        SyncNorm.of(nn.BatchNorm1d(3))(torch.zeros(3))
