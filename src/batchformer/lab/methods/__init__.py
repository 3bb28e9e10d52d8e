"""Methods by name; ``batchformer.lab.config.methods`` declares them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from batchformer.lab.config.methods import MethodConfig, find_method

if TYPE_CHECKING:
    from batchformer.lab.engine.method import Method


def build_method(name: str, *, hyper: MethodConfig | None = None, **options: Any) -> Method:
    """Build the method of this name; its file is imported only now."""
    file, _, kind = find_method(name).path.partition(":")
    make = getattr(importlib.import_module(f"{__name__}.{file}"), kind)
    method: Method = make(hyper=hyper or MethodConfig(), **options)
    return method
