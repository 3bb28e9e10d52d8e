"""The classifier is found by following the gradient back from the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer import attach, check
from batchformer.plug.classifier import (
    AttachError,
    find_classifiers,
    is_layer,
    output_tensors,
    trace,
)
from batchformer.plug.example import find_batch


@dataclass
class Outputs:
    logits: Tensor
    hidden: Tensor


class NamedOutputs(NamedTuple):
    logits: Tensor
    hidden: Tensor


class Net(nn.Module):
    """Two layers declared in the opposite order of their calls, with the output of ``combine``."""

    def __init__(self, combine: str) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.other = nn.Linear(8, 3)
        self.body = nn.Linear(4, 8)
        self.combine = combine

    def forward(self, x: Tensor) -> Any:
        h = self.body(x).relu()
        if self.combine == "one":
            return self.head(h)
        if self.combine == "sum":
            return self.head(h) + self.other(h.tanh())
        if self.combine == "same features":
            return {"a": self.head(h), "b": self.other(h)}
        if self.combine == "different features":
            return self.head(h), self.other(h.tanh())
        if self.combine == "logits":
            return {"logits": self.head(h), "hidden": h}
        if self.combine == "dataclass":
            return Outputs(self.head(h), h)
        if self.combine == "named tuple":
            return NamedOutputs(self.head(h), h)
        return self.head(h).argmax(1)


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.classifier = CosineHead()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x)) * 16


class CosineHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


def heads(model: nn.Module) -> list[str]:
    return find_classifiers(model, trace(model, find_batch(model, torch.randn(3, 4))))


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Net("one"), ["head"]),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softplus()), ["2"]),
        (Cosine(), ["classifier"]),  # weights of its own
        (Net("sum"), ["head", "other"]),
        (Net("same features"), ["head", "other"]),
        (Net("logits"), ["head"]),  # preferred to what else is named
        (Net("dataclass"), ["head"]),
        (Net("named tuple"), ["head"]),
    ],
)
def test_heads_that_belong_together_are_found(model: nn.Module, found: list[str]) -> None:
    assert sorted(heads(model)) == found


def test_a_frozen_model_has_a_head_too_and_stays_frozen() -> None:
    model = Net("one").requires_grad_(False)
    assert heads(model) == ["head"]
    assert not any(p.requires_grad for p in model.parameters())


def test_layers_that_read_different_features_are_named() -> None:
    with pytest.raises(AttachError, match=r"no single classifier.*features, 'head', 'other'"):
        heads(Net("different features"))


@pytest.mark.parametrize("combine", ["different features", "argmax"])
def test_no_single_classifier_lists_the_candidates(combine: str) -> None:
    with pytest.raises(AttachError, match=r"Candidates for at=.*'head' \(Linear, input \(3, 8\)"):
        heads(Net(combine))


class Timm(nn.Module):
    """The contract of timm models."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(4, 8), classifier

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x))


def test_a_head_that_is_not_called_as_a_module_is_to_be_called() -> None:
    model = Cosine()
    model.forward = lambda x: CosineHead.forward(model.classifier, model.body(x))  # type: ignore[method-assign]
    with pytest.raises(AttachError, match=r"head\(x\) rather than head.forward\(x\)"):
        heads(model)


class LowRank(nn.Module):
    """LoRA by hand: weights beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


def test_a_head_with_weights_beside_its_layer_is_to_be_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), LowRank())
    with pytest.raises(AttachError, match=r"name it with at=: '1' \(LowRank, input \(3, 8\)\)"):
        heads(model)
    assert attach(model, at="1", verbose=False)(torch.randn(5, 4)).shape == (10, 3)


@pytest.mark.parametrize("layer", [nn.Linear(8, 3), CosineHead()])
def test_a_single_layer_is_to_be_put_into_a_model(layer: nn.Module) -> None:
    with pytest.raises(AttachError, match=r"attach\(nn.Sequential\(layer\)\)"):
        attach(layer, example=torch.randn(4, 8))
    model = attach(nn.Sequential(layer), example=torch.randn(4, 8), verbose=False)
    assert model(torch.randn(4, 8)).shape == (8, 3)


def test_what_the_model_declares_wins() -> None:
    assert heads(Timm(nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)))) == ["classifier"]
    with pytest.raises(AttachError, match="reset_classifier"):
        heads(Timm(nn.Identity()))


def test_trace_counts_calls_and_leaves_no_hook() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    record = trace(model, find_batch(model))
    assert record.calls["0"].times == 2 and list(record.calls) == ["0", "1"]
    assert "called 2 times" in record.calls["0"].describe()
    assert "There is no candidate" in record.candidates()
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("at", [None, "2"])
def test_a_part_in_torchscript_is_no_place_and_no_obstacle(at: str | None) -> None:
    body = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()))
    model = nn.Sequential(body, nn.Tanh(), nn.Linear(8, 3))
    attach(model, at=at, example=torch.randn(3, 4), verbose=False)
    assert hasattr(model[2], "batchformer") and len(model(torch.randn(5, 4))) == 10
    result = check(model, torch.randn(5, 4))
    assert result, str(result)


def test_layers_are_leaves_with_weights() -> None:
    assert is_layer(nn.Linear(2, 2)) and is_layer(nn.Conv2d(1, 1, 1)) and is_layer(CosineHead())
    assert not is_layer(nn.LayerNorm(4)) and not is_layer(nn.Sequential(nn.Linear(2, 2)))


def test_output_tensors_are_those_a_loss_would_use() -> None:
    a, b = torch.zeros(2), torch.zeros(2, 3)
    assert output_tensors({"logits": a, "hidden": b}) == [a]
    found = output_tensors((a, [b], torch.zeros(()), torch.zeros(2).long(), None))
    assert len(found) == 2 and found[0] is a and found[1] is b
