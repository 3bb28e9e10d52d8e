"""The updates since the last training record; losses stay on the device until they are needed."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.engine.distributed.in_step import mean_of_ranks
from batchformer.nn.exchange import ranks, total_rows


class DivergedError(RuntimeError):
    """The loss is no longer a number; the last good checkpoint is kept."""


class Window:
    """Losses, learning rates and samples of the updates between two records.

    Args:
        update: index of the first update.
    """

    def __init__(self, update: int = 0) -> None:
        self.first = update
        self.names: list[str] = []
        self.rows: list[Tensor] = []
        self.before: Tensor | None = None  # losses of this window before a resume, on the CPU
        self.rates: list[float] = []
        self.samples = 0
        self.started = time.perf_counter()

    def add(self, losses: dict[str, Tensor], rate: float, samples: int) -> None:
        """One update: its losses by part, its learning rate, its rows."""
        self.names = list(losses)
        self.rows.append(torch.stack([losses[name].detach().float() for name in self.names]))
        self.rates.append(rate)
        self.samples += samples

    def pause(self, seconds: float) -> None:
        """Leave time spent on other things out of the speed."""
        self.started += seconds

    def table(self) -> Tensor:
        """All losses ``(updates, parts)`` on the CPU, if every one is a number.

        The only place where the device is waited for.

        Raises:
            DivergedError: naming the first part and update that is not.
        """
        rows = torch.empty(0, len(self.names))
        if self.rows:
            # What is no number on one rank is none on any, and all end together.
            rows = mean_of_ranks(torch.stack(self.rows)).cpu()
        table = rows if self.before is None else torch.cat((self.before, rows))
        bad = (~table.isfinite()).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise DivergedError(
                f"The {self.names[column]!r} part of the loss became {float(table[row, column])} "
                f"at update {self.first + row}, with learning rate {self.rates[row]:.3g}. The last "
                f"good checkpoint is kept. A lower optim.lr, a longer schedule.warmup or "
                f"train.clip-norm usually helps."
            )
        return table

    def record(self) -> dict[str, float]:
        """Mean losses, the last learning rate and the speed."""
        means = self.table().mean(0).tolist()
        samples = self.samples
        if self.rows and ranks() > 1:
            samples = int(total_rows(samples, self.rows[0].device))
        seconds = max(time.perf_counter() - self.started, 1e-9)
        return {
            **dict(zip(self.names, means, strict=True)),
            "lr": self.rates[-1],
            "samples_per_s": samples / seconds,
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, so that the next record is that of an unbroken run."""
        return {
            "first": self.first,
            "names": self.names,
            "rows": self.table(),
            "rates": self.rates,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the updates of an interrupted window."""
        self.first, self.names, self.rates = state["first"], state["names"], state["rates"]
        self.before = state["rows"] if len(state["rows"]) else None
