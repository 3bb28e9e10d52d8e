"""What stands in a model while BatchFormer is attached: heads and norms with a changed forward."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer, mix_second_half, two_streams
from batchformer.plug.reminder import remember
from batchformer.plug.swap import Swapped, swap, unswap

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
    swap(target, WithBatchFormer)
    target.__dict__["_place"] = place
    if encoder is not None:
        target.add_module(CHILD, encoder)


def normalise_per_stream(norm: nn.Module, owner: nn.Module) -> None:
    """Let a BatchNorm after the insertion keep the streams apart while ``owner``'s encoder acts."""
    swap(norm, PerStream)
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
    unswap(module, mixin)
    for name, value in vars(module).items():
        # Accelerate's hooks keep the method that they stand around.
        if isinstance(value, MethodType) and value.__func__ is mixin.forward:
            module.__dict__[name] = MethodType(type(module).forward, module)
