"""What ``torch.compile`` does not look into: collectives, whose results ranks wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Leave a function out of what ``torch.compile`` traces: a graph break, and the same results.

    It is ``torch.compiler.disable``, but for importing the compiler when first called.
    """
    return cast("F", torch._disable_dynamo(function))  # type: ignore[attr-defined]
