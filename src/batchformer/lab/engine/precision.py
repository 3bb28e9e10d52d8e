"""Precisions that autocast has no word for: fp32 with and without TF32, and double precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.engine.method import Method


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Within it, a GPU rounds factors of fp32 to TF32 if the precision is ``tf32``, else never.

    That holds for matrix products and for convolutions alike: torch has a switch for each, and by
    default allows TF32 in convolutions only. A CUDA graph keeps what held when it was captured.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


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
