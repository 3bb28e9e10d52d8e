"""Batches of images or features in memory, each a function of the step; feeds built on others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.data.feeds.order import Order, augmentation_numbers
from batchformer.lab.data.feeds.sharding import Share, own_positions, require_rows
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms.base import Transform, to_device_async
from batchformer.nn.randomness import generator

#: Bytes of images that a GPU augments at a time; with fewer, kernel launches cost the most.
CHUNK_BYTES = 128 * 2**20
#: Chunks kept in memory: runs that share a feed are rarely further apart.
CHUNKS_KEPT = 2


class StreamSafe:
    """Tensors that the current CUDA stream is making, for use on other streams as well."""

    def __init__(self, tensors: Iterable[Any], device: torch.device) -> None:
        self._tensors = [t for t in tensors if isinstance(t, Tensor) and t.is_cuda]
        self._device = device
        self._ready: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Let the caller's stream wait for the tensors, and keep their memory until it is done."""
        if self._ready is not None:
            user = torch.cuda.current_stream(self._device)
            user.wait_event(self._ready)
            for tensor in self._tensors:
                tensor.record_stream(user)


#: Batches of consecutive steps, and all of their tensors.
Chunk = tuple[list[dict[str, Any]], StreamSafe]


class Feed:
    """Augmented batches of an in-memory data set that lives on the device.

    A batch is a function of (seed, step) alone. With several ranks, each has its own part of the
    batch, with the random numbers that these samples have in the whole batch. On a GPU the batches
    of several steps are augmented together, ahead of their use and on a separate stream. Several
    runs may share a feed.

    Args:
        second: transform of a second view of the same images, ``view2``, if a method needs one.
        chunk: steps that are augmented together. None: what suits the device.
        accumulate: parts that a batch will be cut into; every rank has a share of each part.
    """

    def __init__(
        self,
        split: ImageSplit,
        transform: Transform,
        order: Order,
        seed: int,
        device: torch.device | str = "cpu",
        chunk: int | None = None,
        second: Transform | None = None,
        accumulate: int = 1,
    ) -> None:
        self.device = torch.device(device)
        self.x, self.y = split.x.to(self.device), split.labels.to(self.device)
        self.views = {"x": transform} if second is None else {"x": transform, "view2": second}
        self.seed, self.order = seed, order
        self.per_epoch = order.per_epoch
        self.share = Share(order, accumulate)
        if chunk is None and self.device.type == "cuda":
            samples = len(order.index(0))
            chunk = CHUNK_BYTES // (samples * self.x[0].numel() * torch.float32.itemsize)
        self.chunk = max(chunk or 1, 1)
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x`` (N, C, H, W), ``y`` (N,), ``index`` (N,), ``view2``."""
        number, position = divmod(step, self.chunk)
        chunk = self._chunks.get(number)
        if chunk is None:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                chunk = self._make(range(number * self.chunk, (number + 1) * self.chunk))
            self._chunks[number] = chunk
            if len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(number)
        batches, made = chunk
        made.wait()
        return dict(batches[position])

    def _make(self, steps: range) -> Chunk:
        rows = [self.order.index(step) for step in steps]
        draws = [view.draws for view in self.views.values()]
        numbers = [
            augmentation_numbers(self.seed, step, len(row), sum(draws))
            for row, step in zip(rows, steps, strict=True)
        ]
        sizes = [len(row) for row in rows]
        rows, numbers = ([self.share.own(part) for part in parts] for parts in (rows, numbers))
        index = to_device_async(torch.cat(rows), self.device)
        images, columns = self.x[index], torch.split(torch.cat(numbers), draws, dim=1)
        whole = {"x": images, "y": self.y[index], "index": index}
        for (name, view), u in zip(self.views.items(), columns, strict=True):
            whole[name] = view(images, u)
        own = [len(row) for row in rows]
        parts = zip(*(torch.split(tensor, own) for tensor in whole.values()), strict=True)
        batches = [
            {**dict(zip(whole, part, strict=True)), **self.share.parts(size)}
            for part, size in zip(parts, sizes, strict=True)
        ]
        return batches, StreamSafe(whole.values(), self.device)


def close(feed: Any) -> None:
    """End the worker processes of a feed; a feed in memory has none."""
    end = getattr(feed, "close", None)
    if end is not None:
        end()


class ExtendedFeed:
    """The batches of another feed, with more entries.

    Args:
        feed: gives the batches and the length of an epoch.
        extend: takes a batch and its step; returns entries to add to the batch or to replace.
        others: further feeds that `extend` reads; they are closed with `feed`.
    """

    def __init__(
        self, feed: Any, extend: Callable[[dict[str, Any], int], dict[str, Any]], *others: Any
    ) -> None:
        self.feed, self.extend, self.others = feed, extend, others

    @property
    def per_epoch(self) -> int:
        return int(self.feed.per_epoch)

    def batch(self, step: int) -> dict[str, Any]:
        batch = self.feed.batch(step)
        return {**batch, **self.extend(batch, step)}

    def close(self) -> None:
        for feed in (self.feed, *self.others):
            close(feed)


class FeatureFeed:
    """Random batches of feature vectors on the device, each a function of (seed, step).

    No batch has a row twice. A method may take several batches per step.

    Args:
        features: (M, D), with labels (M,).
        batch_size: N, rows of a batch; at most M are taken.
        times: batches per step, concatenated; every rank has its part of each batch.

    >>> feed = FeatureFeed(torch.eye(3), torch.arange(3), batch_size=2, seed=0, times=2)
    >>> feed.per_epoch, feed.batch(0)["x"].shape
    (2, torch.Size([4, 3]))
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        times: int = 1,
    ) -> None:
        if not len(features) or len(features) != len(labels):
            raise ValueError(f"{len(features)} features and {len(labels)} labels make no batch")
        self.features, self.labels = features.to(device), labels.to(device)
        self.batch_size, self.seed, self.times = min(batch_size, len(features)), seed, times
        self.per_epoch = -(-len(features) // self.batch_size)
        require_rows([self.batch_size])

    def batch(self, step: int) -> dict[str, Any]:
        """The rows of one step: ``x`` (times * N, D), ``y`` and ``index`` (times * N,)."""
        rows = [
            torch.randperm(len(self.labels), generator=generator(self.seed, "order", step, number))
            for number in range(self.times)
        ]
        size = self.batch_size
        own = own_positions([size] * self.times)
        index = to_device_async(torch.cat([row[:size] for row in rows])[own], self.features.device)
        return {"x": self.features[index], "y": self.labels[index], "index": index}
