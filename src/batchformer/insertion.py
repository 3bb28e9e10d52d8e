"""What stands in a model while BatchFormer is attached: heads and norms with a changed forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from batchformer.module import BatchFormer, mix_second_half, two_streams
from batchformer.reminder import remember
from batchformer.swap import Swapped, swap, unswap

CHILD = "batchformer"

Role = Literal["double", "mix_second_half", "mix_all", "pass"]


@dataclass
class Place:
    """How one insertion acts.

    Attributes:
        role: ``double`` makes two streams of one; ``mix_second_half`` acts on rows doubled before;
            ``mix_all`` mixes without a plain stream; ``pass`` changes nothing.
        owner: the BatchFormer, in a tuple so that it is not registered a second time (one key in
            the state dict, however many places share it).
        remind: outputs are logits, and remember that they hold two streams.
        stream: where several heads read the very same features, their one mixed stream.
    """

    role: Role
    owner: tuple[BatchFormer]
    remind: bool = False
    stream: SharedStream | None = None

    def __call__(self, x: Tensor) -> Tensor:
        (module,) = self.owner
        if not module.training or self.role == "pass":
            return x
        if self.role == "mix_second_half":
            return mix_second_half(x, module)
        if self.role == "mix_all":
            return module(x)  # type: ignore[no-any-return]
        return two_streams(x, module) if self.stream is None else self.stream.double(x, module)


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
        return remember(out) if place.remind and place.owner[0].training else out


class PerStream(Swapped):
    """BatchNorm that normalises each stream by its own statistics and records only the plain ones.

    Only the plain stream exists at test, so only its running statistics are ever used.
    """

    _driver: tuple[BatchFormer]

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self._driver[0].training):
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


def insert(target: nn.Module, place: Place, *, own: bool) -> None:
    """Put BatchFormer before ``target``, as its child if it is the first place of this module."""
    swap(target, WithBatchFormer)
    target.__dict__["_place"] = place
    if own:
        target.add_module(CHILD, place.owner[0])


def normalise_per_stream(norm: nn.Module, driver: BatchFormer) -> None:
    """Let a BatchNorm after the insertion keep the streams apart."""
    swap(norm, PerStream)
    norm.__dict__["_driver"] = (driver,)


def remove(module: nn.Module) -> None:
    """Undo :func:`insert` or :func:`normalise_per_stream`; any other module is left alone."""
    if isinstance(module, WithBatchFormer):
        module._modules.pop(CHILD, None)
        del module.__dict__["_place"]
    elif isinstance(module, PerStream):
        del module.__dict__["_driver"]
    unswap(module)
