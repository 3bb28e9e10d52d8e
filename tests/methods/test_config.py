"""Every method has its name, and values that cannot be meant are refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from batchformer.methods import METHODS
from batchformer.methods.config import MethodConfig, MethodName


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
