"""What ``attach`` promises for any model, and what it promises where it refuses one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batchformer import attach, check, detach, export
from batchformer.plug.classifier import AttachError, output_tensors


def outputs_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    """What a loss would use, with a detector's boxes; a dict of inputs has keyword arguments."""
    outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    boxes = getattr(outputs, "pred_boxes", None)
    return output_tensors(outputs) + ([] if boxes is None else [boxes])


def equal(these: list[Tensor], those: list[Tensor]) -> bool:
    return len(these) == len(those) > 0 and all(map(torch.equal, these, those))


def classes_of(model: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules()}


def assert_promises_are_kept(
    model: nn.Module, inputs: Any, at: Any = None, places: Any = None
) -> None:
    """From attach to detach: eval and the weights stay, check passes, all that is added trains."""
    with torch.no_grad():
        before = outputs_of(model.eval(), inputs)
    state, classes = copy.deepcopy(model.state_dict()), classes_of(model)
    keys, parameters = list(state), dict(model.named_parameters())
    model.train()

    assert attach(model, at, verbose=False) is model
    assert model.training
    assert places in (None, model.__dict__["_batchformer_attachment"].places)
    now = model.state_dict()
    assert all(torch.equal(now[key], value) for key, value in state.items()), "weights moved"
    added = [key for key in now if key not in keys]
    assert added and all(".batchformer." in key for key in added)
    assert [key for key in now if key not in added] == keys

    result = check(model, inputs)
    assert result.passed, str(result)
    plain = export(model, example=inputs)
    assert classes_of(plain) == classes
    with torch.no_grad():
        for twin in (model.eval(), plain):
            assert equal(outputs_of(twin, inputs), before), "the model as it was, to the bit"

    trained = outputs_of(model.train(), inputs)
    assert len(trained[0]) == 2 * len(before[0]) and len(trained) == len(before)
    sum(t.square().mean() for t in trained).backward()  # type: ignore[union-attr]
    gradients = [p.grad for key, p in model.named_parameters() if key in added]
    assert gradients and all(g is not None and g.isfinite().all() for g in gradients)

    assert detach(model) is model
    assert list(model.state_dict()) == keys and classes_of(model) == classes
    held = dict(model.named_parameters())
    assert all(held[key] is parameter for key, parameter in parameters.items())
    assert len(outputs_of(model, inputs)[0]) == len(before[0])
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        assert equal(outputs_of(model.eval(), inputs), before)


def refusal(model: nn.Module, words: str, **options: Any) -> str:
    """What attach says, with these words in it; the model must be as it was."""
    training, classes = model.training, classes_of(model)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(AttachError, match=words) as told:
        attach(model, verbose=False, **options)
    now = model.state_dict()
    assert list(now) == list(state) and classes_of(model) == classes and model.training == training
    assert all(torch.equal(now[key], value) for key, value in state.items())
    assert not any("_place" in vars(m) or m._forward_pre_hooks for m in model.modules())
    return str(told.value)
