"""Refuse arguments that make no sense; each error says what to use instead.

Arguments are given by their names: ``whole_numbers("BatchFormer", 1, heads=heads)``.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from torch import Tensor, nn


def whole_numbers(where: str, least: int | None, /, **given: Any) -> None:
    """Refuse anything but whole numbers of at least ``least``; True and False are refused too."""
    wanted = "a whole number" + ("" if least is None else f" of at least {least}")
    for name, value in given.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or (least is not None and value < least):
            raise ValueError(f"{where}: {name}={value!r}; use {wanted}.")


def real_numbers(where: str, /, **given: Any) -> None:
    """Refuse anything but finite numbers of at least 0; a tensor of one number is accepted."""
    for name, value in given.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        number |= isinstance(value, Tensor) and value.numel() == 1
        if not (number and 0.0 <= value < math.inf):
            raise ValueError(f"{where}: {name}={value!r}; use a finite number of at least 0.")


def switches(where: str, /, **given: Any) -> None:
    """Refuse values that equal neither True nor False: the text "no" would count as true."""
    for name, value in given.items():
        if value not in (True, False):
            raise ValueError(f"{where}: {name}={value!r}; use True or False.")


def choices(where: str, allowed: tuple[str, ...], /, **given: Any) -> None:
    """Refuse anything but the allowed words."""
    for name, value in given.items():
        if value not in allowed:
            raise ValueError(f"{where}: {name}={value!r}; use {' or '.join(map(repr, allowed))}.")


def a_model(where: str, model: Any) -> None:
    """Refuse what is not an ``nn.Module``, such as a model's class, its parameters or None."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"{where}: the model must be an nn.Module, such as MyNet(), not {what}.")


def an_optimizer(where: str, optimizer: Any) -> None:
    """Refuse anything but None and objects with parameter groups."""
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise ValueError(
            f"{where}: optimizer= must be a torch optimizer, such as torch.optim.SGD(...), not "
            f"{type(optimizer).__name__}."
        )
