"""The training pass that attach ends with."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from batchformer import attach
from batchformer.heads import AttachError


class Chain(nn.Module):
    """A container that runs all its children, whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_a_container_that_would_run_batchformer_twice_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), Chain(), nn.Linear(8, 3))
    with pytest.raises(AttachError, match="choose its first layer instead"):
        attach(model, at="1", verbose=False)
    assert attach(model, at="1.first", verbose=False)(torch.randn(5, 4)).shape == (10, 3)


class Auxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux, self.head = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = self.body(x)
        return (self.head(h.relu()), self.aux(h)) if self.training else self.head(h.relu())


def test_an_auxiliary_output_is_refused_unless_the_place_is_chosen() -> None:
    with pytest.raises(AttachError, match=r"\[\(6, 3\), \(3, 3\)\] for 3 samples"):
        attach(Auxiliary(), verbose=False)
    main, aux = attach(Auxiliary(), at="head", verbose=False)(torch.randn(5, 4))
    assert main.shape == (10, 3) and aux.shape == (5, 3)


def test_the_rehearsal_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    attach(model, at="1", verbose=False)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert [m.training for m in model] == [True, False, True, True]
    assert not any(m._forward_pre_hooks for m in model.modules())


class Counting(nn.Module):
    """Knows its passes with values from those without, and may look at a value."""

    def __init__(self, looks: bool, passes: list[str]) -> None:
        super().__init__()
        self.body, self.head, self.looks = nn.Linear(4, 8), nn.Linear(8, 3), looks
        self.note = passes.append

    def forward(self, x: Tensor) -> Tensor:
        self.note("shapes" if x.is_meta else "values")
        if self.looks and x.mean() > 100:
            return x
        return self.head(self.body(x).relu())


@pytest.mark.parametrize("looks", [False, True])
def test_a_large_model_is_rehearsed_without_values_where_it_needs_none(
    looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo  # as torchvision, timm and transformers do

    monkeypatch.setattr("batchformer.snapshot.LARGE", 1)
    passes: list[str] = []
    model = Counting(looks, passes)
    tensors, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    attach(model, verbose=False)
    assert set(passes) == ({"shapes", "values"} if looks else {"shapes"})
    assert all(dict(model.named_parameters())[name] is tensors[name] for name in tensors)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert model.head.batchformer.layers[0].linear1.weight.device.type == "cpu"
    assert model(torch.randn(5, 4)).shape == (10, 3)
