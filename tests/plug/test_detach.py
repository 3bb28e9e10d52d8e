"""One line out: what is left is the plain model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from batchformer import attach, detach, export
from batchformer.lab.models.norms import freeze_norm
from batchformer.plug.classifier import AttachError
from batchformer.plug.export import same_bits
from helpers.networks import NormedNet, X


def test_detach_restores_objects_classes_and_keys() -> None:
    model = NormedNet()
    modules = dict(model.named_modules())
    types = {name: type(module) for name, module in modules.items()}
    variables = {name: set(vars(module)) for name, module in modules.items()}
    attach(model, at=["body", "fc"], batch_norm="per_stream", verbose=False)
    assert detach(model) is model
    now = dict(model.named_modules())
    assert now.keys() == modules.keys()
    for name, module in modules.items():
        assert now[name] is module and type(module) is types[name], name
        assert set(vars(module)) == variables[name], name


def test_detach_and_a_refused_attach_leave_mixins_that_are_not_theirs() -> None:
    model = NormedNet()
    freeze_norm(model)
    frozen = type(model.norm)
    with pytest.raises(AttachError):
        attach(model, at="fc", batch_axis=5)
    fixed = Fixed()
    with pytest.raises(AttachError, match="a training pass fails"):
        attach(fixed, at="body", batch_norm="per_stream")
    assert type(fixed.norm) is frozen and type(fixed.body) is nn.Linear
    for options in ({}, {"at": "body", "batch_norm": "per_stream"}):
        attach(model, verbose=False, **options)  # type: ignore[arg-type]
        assert type(export(model).norm) is frozen
        assert type(detach(model).norm) is frozen
    model.train()(X)
    assert not model.norm.training and not model.norm.running_mean.any()


class Fixed(NormedNet):
    """After the norm it takes as many rows as the model was given, and no others."""

    def __init__(self) -> None:
        super().__init__()
        freeze_norm(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.norm(self.body(self.stem(x))).view(len(x), 8))
        return out


@pytest.mark.parametrize("first", ["attach", "weight_norm"])
@pytest.mark.parametrize("last", ["detach", "export", "remove_parametrizations"])
def test_a_parametrized_head_survives(first: str, last: str) -> None:
    model = NormedNet()
    before = model.eval()(X)
    model.train()
    if first == "attach":
        attach(model, verbose=False)
    weight_norm(model.fc)
    if first == "weight_norm":
        attach(model, verbose=False)
    assert model(X).shape == (14, 5)
    if last == "export":
        plain = export(model)
        assert model(X).shape == (14, 5), "the attached model is left as it is"
    elif last == "detach":
        plain = detach(model)
    else:
        remove_parametrizations(model.fc, "weight")
        assert model(X).shape == (14, 5)
        plain = detach(model)
        assert type(plain.fc) is nn.Linear
    assert not any("batchformer" in key for key in plain.state_dict())
    plain.norm.reset_running_stats()
    torch.testing.assert_close(plain.eval()(X), before)


def test_hooks_of_accelerate_around_the_head_survive_detach() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = attach(NormedNet(), verbose=False)
    hooks.add_hook_to_module(model.fc, hooks.ModelHook())
    assert model(X).shape == (14, 5)
    assert torch.equal(export(model)(X), model.eval()(X))
    assert detach(model.train())(X).shape == (7, 5)
    hooks.remove_hook_from_module(model.fc)
    assert model(X).shape == (7, 5)


def test_export_takes_off_a_wrapper_of_timm() -> None:
    timm = pytest.importorskip("timm.utils")
    model = attach(NormedNet(), verbose=False)
    average = timm.ModelEmaV3(model)
    plain = export(average)
    assert type(plain) is NormedNet and list(plain.state_dict()) == list(NormedNet().state_dict())
    assert torch.equal(plain(X), model.eval()(X))
    assert detach(average) is average and type(average.module.fc) is nn.Linear


def test_errors_name_the_function_that_was_called() -> None:
    with pytest.raises(
        AttachError, match=r"^export\(\): BatchFormer is not attached to this NormedNet"
    ):
        export(NormedNet())
    with pytest.raises(
        AttachError, match=r"^detach\(\): BatchFormer is not attached to this NormedNet"
    ):
        detach(NormedNet())


def test_bits_are_compared_and_nothing_else() -> None:
    a = torch.tensor([1.0, torch.nan, 0.0])
    assert same_bits(a, a.clone())
    assert not same_bits(a, torch.tensor([1.0, 2.0, 0.0]))
    assert not same_bits(a, torch.tensor([1.0, torch.nan]))
