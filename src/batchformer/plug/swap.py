"""Give a module another ``forward``, reversibly, without a hook or a wrapper.

The object's class becomes a subclass of its own class: parameters, keys, ``isinstance`` and
``named_modules`` stay as they were, compilers see an ordinary module, and copies and pickles work.
Several mixins may stand in front of one class, and each is taken away without the others.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized


class Swapped(nn.Module):
    """Base of the mixins that :func:`swap` puts in front of a module's own class."""

    _mixin: type[Swapped]
    _own_class: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The generated class has no importable name: say how to generate it again.
        own: Any = self
        state = own.__getstate__() if hasattr(own, "__getstate__") else self.__dict__
        mixins, cls = [], type(self)
        while "_mixin" in cls.__dict__:
            mixins.append(cls._mixin)
            cls = cls._own_class  # type: ignore[assignment]
        return _blank, (tuple(mixins), cls), state


@functools.cache
def _combined(mixin: Any, own: Any) -> Any:
    name = f"{own.__name__}{mixin.__name__}"
    return type(name, (mixin, own), {"_mixin": mixin, "_own_class": own, "__module__": __name__})


def _blank(mixins: tuple[Any, ...], own: Any) -> Any:
    for mixin in reversed(mixins):
        own = _combined(mixin, own)
    return own.__new__(own)


def swap(module: nn.Module, mixin: Any) -> None:
    """Put ``mixin`` in front of the module's class."""
    own: Any = type(module)
    if is_parametrized(module):
        # torch generates a class for a parametrized module and later returns to its first base,
        # so the mixin has to stand below the generated class.
        (base,) = own.__bases__
        generated = _rebased(own, (_combined(mixin, base),))
        generated._origin = own
        module.__class__ = generated
    else:
        module.__class__ = _combined(mixin, own)


def unswap(module: nn.Module, mixin: Any) -> None:
    """Take ``mixin`` away from the module's class; other mixins and generated classes stay."""
    module.__class__ = _without(type(module), mixin)


def _without(cls: Any, mixin: Any) -> Any:
    if not issubclass(cls, mixin):
        return cls
    if "_mixin" in cls.__dict__:
        own = _without(cls._own_class, mixin)
        return own if cls._mixin is mixin else _combined(cls._mixin, own)
    # A class that was generated on top of ours, such as that of a parametrized module.
    bases = tuple(_without(base, mixin) for base in cls.__bases__)
    origin = cls.__dict__.get("_origin")
    if origin is not None and origin.__bases__ == bases and _names(origin) == _names(cls):
        return origin
    return _rebased(cls, bases)


def _names(cls: Any) -> set[str]:
    """What a generated class defines, but for what Python adds to a class in use."""
    return {name for name in cls.__dict__ if not name.startswith("__")} - {"_origin"}


def _rebased(cls: Any, bases: tuple[Any, ...]) -> Any:
    """The same generated class on other bases."""
    left_out = ("__dict__", "__weakref__", "_origin")
    namespace = {key: value for key, value in cls.__dict__.items() if key not in left_out}
    name = cls.__name__
    for old, new in zip(cls.__bases__, bases, strict=True):
        name = name.replace(old.__name__, new.__name__)
    return type(cls)(name, bases, namespace)
