"""Measure BatchFormer across ranks: its time, and the bytes that ranks exchange.

Run as a module, this file is one of the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed as dist

from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Spread, Table
from batchformer.nn.module import BatchFormer, two_streams

ROUNDS, STEPS = 15, 5  # rounds of a measurement, and steps of a round
TIMEOUT_S = 300  # seconds after which ranks that wait for one another are killed
MB = 1e6


@dataclass(frozen=True)
class Case:
    """What is measured: a number of ranks, rows of each rank, and channels."""

    ranks: int
    rows: int
    dim: int


def cases(devices: int) -> list[Case]:
    """Sizes for this many GPUs; without a GPU, smaller ones for the CPU."""
    if devices:
        return [Case(devices, rows, 2048) for rows in (32, 256)]
    return [Case(2, 32, 512), Case(2, 128, 512), Case(2, 128, 1024)]


def measure(settings: BenchSettings, chosen: Sequence[Case] | None = None) -> Table:
    """Milliseconds of a step with and without exchange, and bytes that a rank sends."""
    devices = torch.cuda.device_count() if settings.on_gpu else 0
    if devices == 1:
        raise RuntimeError("each rank needs its own GPU, and there is one; use --device cpu")
    table = Table(
        "exchange",
        "BatchFormer over several ranks, both streams, forward and backward",
        (
            "ranks",
            "samples of a rank",
            "C",
            "each rank by itself, ms",
            "over all ranks, ms",
            "one process with all samples, ms",
            "a rank sends, MB",
            "a rank receives, MB",
        ),
        {**settings.environment(torch.float32), "threads": "1 for each process"},
        notes=[
            "MB are what a rank hands to collectives for others and gets from them; gradients of "
            "parameters, which DDP averages, are not counted and not timed"
        ],
    )
    for case in chosen or cases(devices):
        with table.attempt(f"{case.ranks} ranks with {case.rows} samples"):
            rounds, joined = settings.repeats or ROUNDS, Case(1, case.ranks * case.rows, case.dim)
            found = time_ranks(case, rounds, on_gpu=bool(devices))
            one = time_ranks(joined, rounds, on_gpu=bool(devices))
            moved = traffic([case.rows] * case.ranks, case.dim, scatter=bool(devices))
            times = (found["alone"], found["exchange"], one["alone"])
            table.add(
                *(case.ranks, case.rows, case.dim),
                *map(Spread.ms, times),
                *(moved.sent / MB, moved.received / MB),
            )
    return table


class Traffic(NamedTuple):
    sent: int  # bytes
    received: int


def traffic(
    counts: Sequence[int],
    dim: int,
    layers: int = 1,
    element_bytes: int = 4,
    *,
    positions: int = 1,
    scatter: bool = False,
) -> Traffic:
    """What a rank sends and receives in a training step of one ``BatchFormer(exchange=True)``.

    It is the same for every rank, because shorter ranks are padded. It counts what a rank hands to
    the collectives for others, and what it gets from them. How often the wires carry it depends on
    the algorithm (a ring passes on what others sent). Gradients that DDP averages do not count.

    Args:
        counts: rows of every rank.
        element_bytes: of keys and values: 4 in float32, 2 where autocast makes them half.
        scatter: gradients are summed by reduce-scatter, as with NCCL, not by all-reduce.

    >>> traffic([32] * 8, dim=2048)
    Traffic(sent=4718616, received=7864488)
    """
    others, most = len(counts) - 1, max(counts)
    if not others:
        return Traffic(0, 0)
    header = 3 * 8  # rows, positions and seed, in int64
    row = layers * positions * 2 * dim * element_bytes
    summed = (others * most, most) if scatter else (sum(counts),) * 2
    return Traffic(
        sent=header + row * (most + summed[0]),
        received=others * header + row * (others * most + summed[1]),
    )


def time_ranks(case: Case, rounds: int, on_gpu: bool = False) -> dict[str, list[float]]:
    """Seconds of a step of the slowest rank, round by round, without and with exchange."""
    with tempfile.TemporaryDirectory() as folder:
        work = {**asdict(case), "rounds": rounds, "on_gpu": on_gpu, "folder": folder}
        logs = [Path(folder) / f"{rank}.log" for rank in range(case.ranks)]
        ranks = []
        try:
            for rank, path in enumerate(logs):
                command = [sys.executable, "-m", __name__, json.dumps({**work, "rank": rank})]
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                with path.open("w") as log:
                    ranks.append(
                        subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=log)
                    )
            failed = _wait(ranks)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if failed is not None:
            words = logs[failed].read_text().strip() or f"status {ranks[failed].returncode}"
            raise RuntimeError(f"a rank failed: {words.splitlines()[-1]}")
        found: dict[str, list[float]] = json.loads((Path(folder) / "seconds.json").read_text())
        return found


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all ranks have ended, or one has failed; returns the failed rank, or None.

    The others would wait for a failed rank without end.
    """
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        codes = [process.poll() for process in ranks]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed
        time.sleep(0.05)
    raise RuntimeError(f"the ranks did not end within {TIMEOUT_S} seconds")


def as_rank(
    rank: int, ranks: int, rows: int, dim: int, rounds: int, on_gpu: bool, folder: str
) -> None:
    """Time as one of the ranks; rank 0 writes what the slowest took."""
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    store = f"file://{folder}/store"
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    modules = {"alone": BatchFormer(dim), "exchange": BatchFormer(dim, exchange=True)}
    x = torch.randn(rows, dim, device=device, requires_grad=True)

    def step_of(module: BatchFormer) -> Callable[[], None]:
        gradient = torch.randn(2 * rows, dim, device=device)
        return lambda: torch.autograd.backward(two_streams(x, module), gradient)

    steps = {name: step_of(module.to(device)) for name, module in modules.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            taken = torch.tensor(_seconds(step, on_gpu), device=device)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if number:  # the first round warms up
                seconds[name].append(float(taken))
    if rank == 0:
        (Path(folder) / "seconds.json").write_text(json.dumps(seconds))
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may abort an interpreter that ends while they run


def _seconds(step: Callable[[], None], on_gpu: bool) -> float:
    dist.barrier()
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / STEPS


if __name__ == "__main__":
    as_rank(**json.loads(sys.argv[1]))
