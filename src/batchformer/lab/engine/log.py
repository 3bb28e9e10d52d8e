"""What a run logs: losses since the last record, records on disk, lines or a progress bar."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.files import write_atomically
from batchformer.lab.engine.distributed.gradients import mean_over_ranks
from batchformer.nn.exchange import total_rows, world_size

#: What to change where a run diverges.
ADVICE = (
    "A lower optim.lr, a longer schedule.warmup, train.clip-norm or a higher train.precision "
    "usually helps."
)


class DivergedError(RuntimeError):
    """A loss, weight or score became NaN or infinite; the last good checkpoint is kept."""


class LossWindow:
    """Losses, learning rates and samples of the updates since the last record.

    Losses stay on the device until they are needed.
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
        """Add one update: its losses by part, its learning rate, its rows."""
        self.names = list(losses)
        self.rows.append(torch.stack([losses[name].detach().float() for name in self.names]))
        self.rates.append(rate)
        self.samples += samples

    def pause(self, seconds: float) -> None:
        """Exclude these seconds from the measured speed."""
        self.started += seconds

    def table(self) -> Tensor:
        """All losses ``(updates, parts)`` on the CPU; waits for the device.

        Raises:
            DivergedError: one is NaN or infinite; names the first part and update.
        """
        rows = torch.empty(0, len(self.names))
        if self.rows:
            # Averaging spreads NaN to all ranks, so they stop together.
            rows = mean_over_ranks(torch.stack(self.rows)).cpu()
        table = rows if self.before is None else torch.cat((self.before, rows))
        bad = (~table.isfinite()).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise DivergedError(
                f"The {self.names[column]!r} part of the loss became {float(table[row, column])} "
                f"at update {self.first + row}, with learning rate {self.rates[row]:.3g}. The last "
                f"good checkpoint is kept. {ADVICE}"
            )
        return table

    def record(self) -> dict[str, float]:
        """Mean losses, the last learning rate and the speed."""
        means = self.table().mean(0).tolist()
        samples = self.samples
        if self.rows and world_size() > 1:
            samples = int(total_rows(samples, self.rows[0].device))
        seconds = max(time.perf_counter() - self.started, 1e-9)
        return {
            **dict(zip(self.names, means, strict=True)),
            "lr": self.rates[-1],
            "samples_per_s": samples / seconds,
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs for the next record to equal that of an uninterrupted run."""
        return {
            "first": self.first,
            "names": self.names,
            "rows": self.table(),
            "rates": self.rates,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue an interrupted window."""
        self.first, self.names, self.rates = state["first"], state["names"], state["rates"]
        self.before = state["rows"] if len(state["rows"]) else None


#: Seconds between lines of a measurement, if there is no bar.
EVERY_S = 10.0


class RunLog:
    """Appends records to ``metrics.jsonl`` and TensorBoard, and to Weights & Biases if asked."""

    def __init__(self, folder: Path, wandb_project: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / "metrics.jsonl"
        self._board: Any = None
        self._wandb = _wandb_run(wandb_project, folder) if wandb_project else None

    def rewind(self, update: int) -> None:
        """Remove records after an update, and an incomplete last line, before resuming there.

        Checkpoints are written before evaluations, so an evaluation at this update is repeated.
        """
        records = read_records(self.path)
        kept = [r for r in records if r["step"] < update + (r["kind"] == "train")]
        write_records(self.path, kept)

    def write(self, kind: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Append one record: ``"train"``, ``"eval"``, or the kind of a finding."""
        record = {"kind": kind, "epoch": epoch, "step": step, **values}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder))
        for name, value in values.items():
            self._board.add_scalar(f"{kind}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log({f"{kind}/{n}": v for n, v in values.items()}, step=step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


class NoLog(RunLog):
    """For ranks other than 0, which write nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "metrics.jsonl"
        self._board = self._wandb = None

    def rewind(self, update: int) -> None:
        """Do nothing."""

    def write(self, kind: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Do nothing."""


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole ``metrics.jsonl``."""
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records).encode())


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a ``metrics.jsonl``; a line that a crash cut short is skipped."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int) and "kind" in record:
            records.append(record)
    return records


class Progress:
    """A live bar on a terminal, plain lines otherwise, nothing when quiet.

    Args:
        quiet: print only what :meth:`say` gets.
        draw_bar: whether to draw a bar on the terminal; only one run can.
        silent: print nothing at all, because another rank does.
    """

    def __init__(
        self,
        title: str,
        updates: int,
        quiet: bool = False,
        draw_bar: bool = True,
        silent: bool = False,
    ) -> None:
        quiet = quiet or silent
        self.title, self.updates, self.quiet, self.silent = title, updates, quiet, silent
        self.started, self.first = time.perf_counter(), 0
        self.said = self.started
        self._bar: Any = None
        if draw_bar and not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=updates, state="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def resume(self, update: int) -> None:
        """Start the clock at an update that is not the first."""
        self.first, self.started = update, time.perf_counter()

    def train(self, epoch: int, update: int, loss: float, samples_per_s: float) -> None:
        """Show the progress after a training record."""
        state = f"epoch {epoch} loss {loss:.3f} {samples_per_s:,.0f} samples/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=update, state=state)

    def evaluated(self, epoch: int, update: int, values: Mapping[str, float]) -> None:
        """Show the scores of an evaluation, if there is no bar."""
        if not self.quiet and self._bar is None:
            seconds = time.perf_counter() - self.started
            left = seconds / max(update - self.first, 1) * (self.updates - update)
            scores = " ".join(f"{name} {value:.1f}" for name, value in values.items())
            place = f"epoch {epoch} update {update}/{self.updates}"
            print(f"{self.title}: {place} {scores} ({left:.0f} s left)", flush=True)

    def measured(self, done: int, total: int) -> None:
        """Show how much of a measurement that follows the training is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif not self.quiet and time.perf_counter() - self.said > EVERY_S:
            self.said = time.perf_counter()
            print(f"{self.title}: {done}/{total}", flush=True)

    def hint(self, message: str) -> None:
        """Print a message unless quiet or a bar already shows the progress."""
        if self._bar is None:
            self.note(message)

    def note(self, message: str) -> None:
        """Print a message unless quiet."""
        if not self.quiet:
            self.say(message)

    def say(self, message: str) -> None:
        """Print a message even when quiet."""
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)
        elif not self.silent:
            print(message, file=sys.stderr, flush=True)


def _wandb_run(project: str, folder: Path) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            "Logging to Weights & Biases needs: pip install 'batchformer[wandb]'"
        ) from error
    return wandb.init(project=project, dir=str(folder), name=folder.as_posix(), resume="allow")
