"""Two feeds as one: a training batch, and a second batch to judge an update by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchformer.lab.data.feeds.memory import close
from batchformer.lab.engine.method import Batches


@dataclass(frozen=True)
class WithMeta:
    """Batches of `feed` that also hold ``meta_x`` and ``meta_y``, the batch of `meta`.

    Args:
        feed: counts the epochs.
        meta: asked for the same step.
    """

    feed: Batches
    meta: Batches

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch of `feed`."""
        return self.feed.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x``, ``y``, ``index``, ``meta_x`` and ``meta_y``."""
        other = self.meta.batch(step)
        return {**self.feed.batch(step), "meta_x": other["x"], "meta_y": other["y"]}

    def close(self) -> None:
        """Close both feeds."""
        close(self.feed)
        close(self.meta)
