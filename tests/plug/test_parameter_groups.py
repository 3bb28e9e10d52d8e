"""BatchFormer's parameters in an optimizer: all of them, once, at their own rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batchformer import attach, check, detach, match, param_groups
from batchformer.plug.classifier import AttachError
from helpers.networks import NormedNet, X


def test_an_optimizer_built_before_is_extended_or_the_omission_is_loud() -> None:
    model = NormedNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with pytest.warns(UserWarning, match="THEY WILL NOT BE TRAINED"):
        attach(model, verbose=False)
    detach(model)
    attach(model, optimizer=optimizer, verbose=False)
    group = optimizer.param_groups[1]
    assert group["lr"] == pytest.approx(0.05) and group["momentum"] == 0.9
    assert {id(p) for p in group["params"]} == {id(p) for p in model.fc.batchformer.parameters()}
    before = model.fc.batchformer.layers[0].linear1.weight.clone()
    out = model(X)
    F.cross_entropy(out, match(out, torch.arange(7) % 5)).backward()
    optimizer.step()
    assert not torch.equal(model.fc.batchformer.layers[0].linear1.weight, before)


def test_an_optimizer_of_named_parameters_gets_names_too() -> None:
    model = NormedNet()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.5)
    attach(model, optimizer=optimizer, verbose=False)
    named = dict(model.named_parameters())
    group = optimizer.param_groups[1]
    assert group["name"] == "batchformer" and len(group["params"]) == 12
    for name, parameter in zip(group["param_names"], group["params"], strict=True):
        assert named[name] is parameter and ".batchformer." in name


def test_objects_are_looked_through_only_once_an_optimizer_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None: ...  # type: ignore[override]

    monkeypatch.setattr("batchformer.plug.attach._subclasses", lambda kind: {Own})
    with monkeypatch.context() as patch:
        patch.setattr("gc.get_objects", lambda: pytest.fail("there is no optimizer to find"))
        attach(NormedNet(), verbose=False)
    model = NormedNet()
    optimizer = Own.__new__(Own)  # as a pickle builds it: without __init__
    optimizer.__setstate__(torch.optim.SGD(model.parameters(), lr=0.1).__getstate__())
    with pytest.warns(UserWarning, match=r"\(Own\) was built before"):
        attach(model, verbose=False)


class SetsItsRates(torch.optim.Optimizer):
    """As Adafactor of transformers: it is given no learning rate."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": None})


def test_an_optimizer_that_sets_its_rates_by_itself() -> None:
    model = NormedNet()
    before = SetsItsRates(model.parameters())
    with pytest.raises(ValueError, match=r"SetsItsRates has no learning rate.*Attach first"):
        attach(model, optimizer=before)
    assert type(model.fc) is torch.nn.Linear
    del before
    attach(model, verbose=False)
    assert check(model, X, SetsItsRates(model.parameters()))


@pytest.mark.parametrize("freeze", [lambda m: None, lambda m: m.stem.requires_grad_(False)])
def test_param_groups_hold_every_trainable_parameter_once(
    freeze: Callable[[NormedNet], Any],
) -> None:
    model = attach(NormedNet(), at=["body", "fc"], share=True, verbose=False)
    freeze(model)
    groups = param_groups(model, 0.4, 0.25, weight_decay=0.1, module_weight_decay=0.3)
    held = [id(p) for group in groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {id(p) for p in model.parameters() if p.requires_grad}
    assert [(g["lr"], g["weight_decay"]) for g in groups] == [(0.4, 0.1), (0.1, 0.3)]
    assert {id(p) for p in groups[1]["params"]} == {
        id(p) for p in model.body.batchformer.parameters()
    }
    torch.optim.SGD(groups)
    (only,) = param_groups(NormedNet(), 0.4)
    assert only["name"] == "model" and "weight_decay" not in only


def test_a_head_that_was_replaced_is_noticed() -> None:
    model = attach(NormedNet(), verbose=False)
    model.fc = torch.nn.Linear(8, 3)  # as reset_classifier does
    with pytest.raises(AttachError, match=r"before fc, which was replaced since.*detach"):
        param_groups(model, 0.4)
    attach(detach(model), verbose=False)
    assert len(param_groups(model, 0.4)) == 2
