"""Methods by name. To add one: a file here, a line here, a recipe, a test."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchformer.engine.method import Method

#: Where each method lives; loaded when asked for, so that listing them is quick.
METHODS = {
    "cross_entropy": "batchformer.methods.erm:CrossEntropy",
    "balanced_softmax": "batchformer.methods.balanced_softmax:BalancedSoftmaxMethod",
}


def build_method(name: str, **options: Any) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")
    module, _, kind = METHODS[name].partition(":")
    method: Method = getattr(importlib.import_module(module), kind)(**options)
    return method
