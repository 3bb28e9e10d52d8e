"""The running mean against torch's, which asks the device at each update."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from batchformer.lab.engine.stage import WeightEMA


def test_the_mean_is_torchs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours = WeightEMA(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(8, 3))
        ours.update_parameters(model)
        theirs.update_parameters(model)
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for key, value in ours.state_dict().items():
        if value.is_floating_point() or key == "n_averaged":
            torch.testing.assert_close(value, expected[key])
        else:
            assert torch.equal(value, model.state_dict()[key.removeprefix("module.")])


def test_whole_numbers_are_copied() -> None:
    """torch's mean of a number with itself may be one less."""
    model = nn.Linear(2, 2)
    model.register_buffer("edges", torch.arange(3000))
    mean = WeightEMA(model, 0.9)
    for _ in range(5):
        mean.update_parameters(model)
    assert torch.equal(mean.module.edges, torch.arange(3000))


def test_a_loaded_mean_goes_on() -> None:
    model = nn.Linear(2, 2)
    first = WeightEMA(model, 0.5)
    first.update_parameters(model)
    second = WeightEMA(nn.Linear(2, 2), 0.5)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        model.weight.zero_()
    before = second.module.weight.clone()
    second.update_parameters(model)
    torch.testing.assert_close(second.module.weight, before / 2)
