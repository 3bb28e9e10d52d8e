"""Every method has its name."""

from __future__ import annotations

from typing import get_args

from batchformer.lab.config.methods import MethodName
from batchformer.lab.methods import METHODS


def test_every_method_has_a_name_for_the_command_line() -> None:
    assert get_args(MethodName) == tuple(METHODS)
