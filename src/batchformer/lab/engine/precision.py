"""Precisions that autocast does not cover: TF32 on or off, and double precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.engine.method import Method


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Allow TF32 in matrix products and convolutions if the precision is ``tf32``, else forbid it.

    torch has one switch for each of the two, and by default allows TF32 in convolutions only. A
    CUDA graph keeps the setting with which it was captured.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def to_double(value: Any) -> Any:
    """A floating-point tensor, or a list of them, in double precision; other values unchanged.

    >>> import torch
    >>> to_double(torch.ones(1)).dtype, to_double(torch.arange(2)).dtype
    (torch.float64, torch.int64)
    """
    if isinstance(value, list):
        return [to_double(each) for each in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def predict_in_double(method: Method) -> Iterator[None]:
    """Cast inputs of ``method.predict`` to double; tasks provide them in single precision."""
    before, predict = method.__dict__.get("predict"), method.predict
    method.__dict__["predict"] = lambda x: predict(to_double(x))
    try:
        yield
    finally:
        del method.__dict__["predict"]
        if before is not None:
            method.__dict__["predict"] = before
