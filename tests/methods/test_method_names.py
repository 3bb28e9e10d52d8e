"""Every method has its name."""

from __future__ import annotations

from typing import get_args

from batchformer.methods import METHODS
from batchformer.methods.method_names import MethodName


def test_every_method_has_a_name_for_the_command_line() -> None:
    assert get_args(MethodName) == tuple(METHODS)
