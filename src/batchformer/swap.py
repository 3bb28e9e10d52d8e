"""Give a module another ``forward``, reversibly, without a hook or a wrapper.

The object's class becomes a subclass of its own class: parameters, keys, ``isinstance`` and
``named_modules`` stay as they were, compilers see an ordinary module, and copies and pickles work.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


class Swapped(nn.Module):
    """Base of the mixins that :func:`swap` puts in front of a module's own class."""

    _mixin: type[Swapped]
    _own_class: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The generated class has no importable name: say how to generate it again.
        own: Any = self
        state = own.__getstate__() if hasattr(own, "__getstate__") else self.__dict__
        return _blank, (self._mixin, self._own_class), state


@functools.cache
def _combined(mixin: Any, own: Any) -> Any:
    name = f"{own.__name__}{mixin.__name__}"
    return type(name, (mixin, own), {"_mixin": mixin, "_own_class": own, "__module__": __name__})


def _blank(mixin: Any, own: Any) -> Any:
    combined = _combined(mixin, own)
    return combined.__new__(combined)


def swap(module: nn.Module, mixin: Any) -> None:
    """Put ``mixin`` in front of the module's class."""
    own: Any = type(module)
    module.__class__ = _combined(mixin, own)


def unswap(module: nn.Module) -> None:
    """Give the module its own class back."""
    if isinstance(module, Swapped):
        module.__class__ = module._own_class  # type: ignore[assignment]
