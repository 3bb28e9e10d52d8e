"""Whatever happens inside the block, the model comes out as it went in."""

from __future__ import annotations

import copy
import random
import types
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from batchformer.plug.preserve import preserve_generators, preserve_state, shapes_only


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1  # replaced, not written into
        return x + random.random()


def test_modes_buffers_flags_and_random_states_come_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), Counter())
    model[1].eval()
    model[0].bias.requires_grad_(False)
    seen = model[3].seen
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state, python = torch.get_rng_state(), random.getstate()
    expected = np.random.RandomState()
    expected.set_state(np.random.get_state())  # noqa: NPY002
    with pytest.raises(ZeroDivisionError), preserve_state(model):
        model.train()
        model.requires_grad_(True)
        model(torch.randn(5, 4))
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        raise ZeroDivisionError
    assert [m.training for m in model] == [True, False, True, True]
    assert not model[0].bias.requires_grad and model[0].weight.requires_grad
    assert model[3].seen is seen and seen == 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python
    assert np.random.rand() == expected.rand()  # noqa: NPY002


class Observer(nn.Module):
    """As torch's for quantization: its range has no shape before the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor([]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest.resize_(x.shape[1]).copy_(x.amax(0))
        return x


def test_a_buffer_that_a_pass_has_resized_comes_back() -> None:
    model = Observer()
    with preserve_state(model):
        model(torch.randn(5, 4))
        assert model.largest.shape == (4,)
    assert model.largest.shape == (0,)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_the_generators_of_other_accelerators_come_back(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device(kind) if kind == "mps" else torch.device(kind, 1)
    states = {device: torch.tensor([3])}
    module = torch.get_device_module(kind)
    # As torch declares them: those of MPS take no device.
    if kind == "mps":
        monkeypatch.setattr(module, "get_rng_state", lambda: states[device])
        monkeypatch.setattr(module, "set_rng_state", lambda new: states.update({device: new}))
    else:

        def put(new_state: torch.Tensor, device: torch.device) -> None:
            states[device] = new_state

        monkeypatch.setattr(module, "get_rng_state", lambda device: states[device])
        monkeypatch.setattr(module, "set_rng_state", put)
    with preserve_generators([device, torch.device("cpu")]):
        states[device] = torch.tensor([4])
    assert states[device] == 3


class Keeper(nn.Module):
    """Keeps what it computes, in every way that a module may."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)
        self.twice.weight = self.linear.weight  # tied
        self.norm = nn.BatchNorm1d(4)
        self.helper, self.table, self.seen = types.SimpleNamespace(), {"size": 0}, [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = self.helper.cache = self.table["x"] = self.norm(self.twice(self.linear(x)))
        self.table["size"] = len(x)
        self.seen.append(self.cache)
        return self.cache


def test_a_pass_without_values_leaves_no_tensor_behind() -> None:
    model = Keeper()
    state, keys = copy.deepcopy(model.state_dict()), set(vars(model))
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    with pytest.raises(ZeroDivisionError), shapes_only(model):
        assert model.twice.weight is model.linear.weight
        out = model(torch.zeros(5, 4, device="meta"))
        assert out.is_meta and out.shape == (5, 4) and out.requires_grad
        raise ZeroDivisionError
    assert vars(model).keys() == keys and not vars(model.helper)
    assert model.table == {"size": 0} and model.seen == [1]
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        assert tensor is tensors[name]
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert model(torch.randn(5, 4)).shape == (5, 4)


class Bank(nn.Module):
    """Keeps samples and draws noise in attributes that are no buffers."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.bank, self.newest = 0, list[torch.Tensor](), deque([0], maxlen=2)
        self.by_name, self.sizes, self.queue = {"first": 0}, {4}, torch.zeros(2)
        self.torch, self.numpy = torch.Generator(), np.random.default_rng(0)
        self.old_numpy, self.python = np.random.RandomState(0), random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.steps += 1
        self.bank.append(x)
        self.newest.extend((1, 2))
        self.by_name["second"] = 1
        self.sizes.add(len(x))
        self.queue += 1
        return x + sum(self.draws())

    def draws(self) -> tuple[float, ...]:
        drawn = float(torch.rand((), generator=self.torch))
        return drawn, self.numpy.random(), self.old_numpy.rand(), self.python.random()


def test_attributes_and_own_generators_of_modules_come_back() -> None:
    model, other = Bank(), Bank()
    with preserve_state(model):
        model(torch.randn(5, 4))
        assert model.calls == 1 and model.queue.all() and len(model.bank) == 1
    assert model.calls == model.steps == 0 and model.bank == [] and list(model.newest) == [0]
    assert model.by_name == {"first": 0} and model.sizes == {4} and not model.queue.any()
    assert model.draws() == other.draws()
