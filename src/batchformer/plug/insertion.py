"""What stands in a model while BatchFormer is attached: modules with another forward."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from batchformer.nn.module import BatchFormer, mix_second_half, two_streams
from batchformer.plug.classifier import AttachError
from batchformer.plug.two_stream_tensor import remember

# Give a module another ``forward``, reversibly, without a hook or a wrapper.
#
# The object's class becomes a subclass of its own class: parameters, keys, ``isinstance`` and
# ``named_modules`` stay as they were, compilers see an ordinary module, and copies and pickles
# work. Several mixins may stand in front of one class, and each is taken away without the others.


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


def add_mixin(module: nn.Module, mixin: Any) -> None:
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


def remove_mixin(module: nn.Module, mixin: Any) -> None:
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


# What stands in a model while BatchFormer is attached: heads and norms with a changed forward.

CHILD = "batchformer"

Role = Literal["double", "mix_second_half", "mix_all", "pass"]


@dataclass
class Place:
    """How one insertion acts.

    Attributes:
        role: ``double`` makes two streams of one; ``mix_second_half`` acts on rows doubled before;
            ``mix_all`` mixes without a plain stream; ``pass`` changes nothing.
        owner: the module whose child ``batchformer`` acts here, in a tuple so that it is not
            registered a second time. The child is looked up in every pass: a module that replaces
            it acts from then on.
        remind: outputs are logits, and remember that they hold two streams.
        stream: where several heads read the very same features, their one mixed stream.
    """

    role: Role
    owner: tuple[nn.Module]
    remind: bool = False
    stream: SharedStream | None = None

    @property
    def encoder(self) -> BatchFormer:
        return encoder_of(self.owner[0])

    def __call__(self, x: Tensor) -> Tensor:
        module = self.encoder
        if not module.training or self.role == "pass":
            return x
        if self.role == "mix_second_half":
            return mix_second_half(x, module)
        if self.role == "mix_all":
            return module(x)  # type: ignore[no-any-return]
        return two_streams(x, module) if self.stream is None else self.stream.double(x, module)


def encoder_of(owner: nn.Module) -> BatchFormer:
    """The BatchFormer that is a child of ``owner`` now."""
    encoder: BatchFormer | None = getattr(owner, CHILD, None)
    if encoder is None:
        raise RuntimeError(
            f"The child {CHILD!r} of a layer that BatchFormer stands before was removed. "
            f"batchformer.detach(model) takes BatchFormer away; to replace it, assign another "
            f"BatchFormer to {CHILD!r}."
        )
    return encoder


@dataclass
class SharedStream:
    """The doubled features of the current forward pass, kept until the last head has read them."""

    readers: int
    left: int = 0
    source: Tensor | None = None
    doubled: Tensor | None = None

    def __reduce__(self) -> tuple[type[SharedStream], tuple[int]]:
        # Heads that were not all called leave features behind, which belong in no copy or file.
        return SharedStream, (self.readers,)

    def double(self, x: Tensor, module: BatchFormer) -> Tensor:
        if self.source is not x or self.doubled is None:
            self.source, self.doubled, self.left = x, two_streams(x, module), self.readers
        doubled = self.doubled
        self.left -= 1
        if self.left == 0:
            self.source = self.doubled = None
        return doubled


class WithBatchFormer(Swapped):
    """A module whose input passes through BatchFormer first."""

    _place: Place

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        place = self._place
        out = super().forward(place(x), *args, **kwargs)
        return remember(out) if place.remind and place.encoder.training else out


class PerStream(Swapped):
    """BatchNorm that normalises each stream by its own statistics and records only the plain ones.

    Only the plain stream exists at test, so only its running statistics are ever used.
    """

    _driver: tuple[nn.Module]  # the owner of the BatchFormer that doubles the rows

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and encoder_of(self._driver[0]).training):
            return super().forward(x)  # type: ignore[no-any-return]
        plain, mixed = x.chunk(2)
        norm: Any = self
        # The norm's own forward for both: some fuse an activation into it.
        tracked, norm.track_running_stats = norm.track_running_stats, False
        try:
            mixed = super().forward(mixed)
        finally:
            norm.track_running_stats = tracked
        return torch.cat((super().forward(plain), mixed))


def insert(target: nn.Module, place: Place, encoder: BatchFormer | None = None) -> None:
    """Put a place before ``target``; an encoder, if given, becomes a child of ``target``."""
    add_mixin(target, WithBatchFormer)
    target.__dict__["_place"] = place
    if encoder is not None:
        target.add_module(CHILD, encoder)


def normalise_per_stream(norm: nn.Module, owner: nn.Module) -> None:
    """Let a BatchNorm after the insertion keep the streams apart while ``owner``'s encoder acts."""
    add_mixin(norm, PerStream)
    norm.__dict__["_driver"] = (owner,)


def remove(module: nn.Module) -> None:
    """Undo :func:`insert` and :func:`normalise_per_stream`; anything else is left alone."""
    if isinstance(module, WithBatchFormer):
        module._modules.pop(CHILD, None)
        del module.__dict__["_place"]
        _take_away(module, WithBatchFormer)
    if isinstance(module, PerStream):
        del module.__dict__["_driver"]
        _take_away(module, PerStream)


def _take_away(module: nn.Module, mixin: type[Swapped]) -> None:
    remove_mixin(module, mixin)
    for name, value in vars(module).items():
        # Accelerate's hooks keep the method that they stand around.
        if isinstance(value, MethodType) and value.__func__ is mixin.forward:
            module.__dict__[name] = MethodType(type(module).forward, module)


# What attaching BatchFormer did to a model, remembered on it.

RECORD = "_batchformer_attachment"


@dataclass(frozen=True)
class Attachment:
    """What ``attach`` did, remembered on the model.

    Attributes:
        places: names of the modules BatchFormer stands before, in the order of their calls.
        changed: names of all modules whose class is changed: those, and norms per stream.
        streams: ``"shared"`` or ``"mixed_only"``.
        input_axis: the axis of the samples in the model's inputs.
    """

    places: tuple[str, ...]
    changed: tuple[str, ...]
    streams: Literal["shared", "mixed_only"]
    input_axis: int = 0


def refuse_attached(model: nn.Module) -> None:
    """Say that BatchFormer is in the model already, where it is."""
    if RECORD in model.__dict__ or any(isinstance(m, WithBatchFormer) for m in model.modules()):
        raise AttachError(
            "attach(): BatchFormer is attached already. Call detach(model) first, or name all "
            "places in one call: attach(model, at=[...])."
        )
