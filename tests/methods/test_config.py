"""The defaults are the papers', and what cannot be meant is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from batchformer.methods import METHODS
from batchformer.methods.config import MethodConfig, MethodName, ModuleConfig, require_sense


def test_defaults() -> None:
    config = ModuleConfig()
    assert (config.heads, config.layers, config.dropout, config.lr_factor) == (4, 1, 0.5, 0.1)
    assert (config.attend, config.streams, config.loss_scale) == ("batch", "shared", "mean")


def test_every_method_has_a_name_for_the_command_line() -> None:
    assert get_args(MethodName) == tuple(METHODS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.0}, "hyper.scale is 0.0"),
        ({"reweight_epoch": -1}, "hyper.reweight-epoch"),
        ({"experts": 0}, "hyper.experts"),
        ({"queue": 0}, "hyper.queue"),
        ({"momentum": 1.5}, "hyper.momentum is 1.5, outside"),
        ({"tau": -0.5}, "hyper.tau"),
        ({"inner_lr": 0.0}, "hyper.inner-lr"),
    ],
)
def test_impossible_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MethodConfig(**options)


@pytest.mark.parametrize(
    ("method", "module", "words"),
    [
        ("paco", {"loss_scale": "official"}, "never released"),
        ("paco", {"mixed_weight": 0.5}, "no weight of its own"),
        ("ride", {"loss_scale": "official"}, 'module.loss-scale "sum"'),
    ],
)
def test_settings_without_sense_are_refused(
    method: str, module: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        require_sense(method, ModuleConfig(**module))
    require_sense(method, ModuleConfig(**module, enabled=False))
    require_sense("balanced_softmax", ModuleConfig(**module))
