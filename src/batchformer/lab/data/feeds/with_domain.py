"""Feeds that add the domain of each sample, or images of a target domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from batchformer.lab.data.feeds.memory import close


class Batches(Protocol):
    """A feed: batches as a function of the step."""

    @property
    def per_epoch(self) -> int: ...

    def batch(self, step: int) -> dict[str, Any]: ...


class WithDomain:
    """Adds ``domain`` (N,) int64 to the batches of `feed`, looked up by ``index``.

    Args:
        domain: (M,) int64 domain of each sample of the feed.
    """

    def __init__(self, feed: Batches, domain: Tensor, device: torch.device | str = "cpu") -> None:
        if domain.ndim != 1 or domain.dtype != torch.int64:
            raise ValueError(
                f"domain must be int64 of shape (M,), got {domain.dtype} of shape "
                f"{tuple(domain.shape)}"
            )
        self.feed, self.domain = feed, domain.to(device)

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch of `feed`."""
        return self.feed.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x``, ``y``, ``index`` and ``domain``."""
        batch = self.feed.batch(step)
        return {**batch, "domain": self.domain[batch["index"]]}

    def close(self) -> None:
        """Close the feed."""
        close(self.feed)


@dataclass(frozen=True)
class WithTarget:
    """Adds ``x_target`` (N', C, H, W), images of `target`, to the batches of `feed`.

    Labels of the target are left out: adaptation must not see them.
    """

    feed: Batches
    target: Batches

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch of `feed`."""
        return self.feed.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: what `feed` has, and ``x_target``."""
        other = self.target.batch(step)
        return {**self.feed.batch(step), "x_target": other["x"]}

    def close(self) -> None:
        """Close both feeds."""
        close(self.feed)
        close(self.target)
