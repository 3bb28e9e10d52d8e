"""Methods by name; ``batchformer.lab.config.methods`` declares them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from batchformer.lab.config.methods import MethodConfig, find_method

if TYPE_CHECKING:
    from batchformer.lab.engine.method import Method


def build_method(name: str, **options: Any) -> Method:
    """The method of this name; its file is imported when it is asked for."""
    file, _, kind = find_method(name).path.partition(":")
    method: Method = getattr(importlib.import_module(f"{__name__}.{file}"), kind)(**options)
    hyper = options.get("hyper")
    if isinstance(hyper, MethodConfig) and hyper.swad:
        from batchformer.lab.methods.swad import Swad

        return Swad(method, hyper.swad_converge, hyper.swad_tolerance, hyper.swad_ratio)
    return method
