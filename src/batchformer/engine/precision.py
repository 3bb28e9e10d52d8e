"""Double precision, which autocast has no word for: inputs are widened where they come in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from batchformer.engine.method import Method


def in_double(value: Any) -> Any:
    """A tensor of numbers, or a list of such, in double precision; anything else as it is.

    >>> import torch
    >>> in_double(torch.ones(1)).dtype, in_double(torch.arange(2)).dtype
    (torch.float64, torch.int64)
    """
    if isinstance(value, list):
        return [in_double(each) for each in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def predicting_in_double(method: Method) -> Iterator[None]:
    """Within it, predictions of a method with double weights take what tasks have."""
    before, predict = method.__dict__.get("predict"), method.predict
    method.__dict__["predict"] = lambda x: predict(in_double(x))
    try:
        yield
    finally:
        del method.__dict__["predict"]
        if before is not None:
            method.__dict__["predict"] = before
