"""Two nodes on one machine: two ``torchrun`` agents on the loopback, each with its ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch import Tensor

from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.log import read_records
from helpers.lab_runs import metrics_of
from soak.kills import folder_of
from soak.processes import start

#: Options with which several ranks compute what one process does, up to rounding. In single
#: precision differences of rounding would grow to another result within hundreds of updates.
EXACT = (
    *("--train.sync-norm", "--module.exchange", "--train.precision", "fp64"),
    *("--train.checkpoint-every", "50"),
)
#: With a store shared between agent and ranks (torch 2.15), a surviving agent does not give its
#: address to a restarted one, and a node that comes back would wait forever.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
#: Nodes, and ranks of each.
NODES, RANKS = 2, 2


def command(runs: Path, options: Sequence[str] = EXACT) -> list[str]:
    """The command of every rank."""
    fixed = ("--arm", "batchformer", "--device", "cpu", "--quiet")
    return ["-m", "batchformer", "train", "demo", *fixed, *options, "--runs", str(runs)]


def agent(node: int, port: int, work: Sequence[str], restarts: int = 3) -> list[str]:
    """The command line of one node's agent; node 0 hosts the rendezvous and must survive."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(NODES), "--nproc-per-node", str(RANKS)),
        *("--max-restarts", str(restarts), "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "soak"),
        *("--rdzv-conf", f"is_host={int(node == 0)}"),
        *work,
    ]


def free_port() -> int:
    """A free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_ranks(command: list[str], outputs: Sequence[Path]) -> list[BaseProcess]:
    """Start a command on one rank for each output, told of the others as ``torchrun`` does."""
    port = free_port()
    return [
        start(command, output, partial(_as_rank, rank, len(outputs), port))
        for rank, output in enumerate(outputs)
    ]


def _as_rank(rank: int, ranks: int, port: int) -> None:
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


class Nodes:
    """Agents of a training on two nodes that share a folder of runs."""

    def __init__(self, runs: Path, options: Sequence[str] = EXACT) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self.runs = runs
        self.port, self.work = free_port(), command(runs, options)
        self.agents = [self._start(node) for node in range(NODES)]

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        with (self.runs / f"node{node}.out").open("ab") as output:
            return subprocess.Popen(
                agent(node, self.port, self.work),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
            )

    def kill(self, node: int) -> int:
        """Kill an agent and all its ranks at once; returns the number of processes."""
        found = [self.agents[node].pid, *descendants(self.agents[node].pid)]
        for process in found:
            os.kill(process, signal.SIGKILL)
        self.agents[node].wait()
        return len(found)

    def start_again(self, node: int) -> None:
        """Restart an agent, as a node's supervisor would."""
        self.agents[node] = self._start(node)

    def finish(self, seconds: float = 900) -> None:
        """Wait for the end; an error says what the nodes printed."""
        end = time.monotonic() + seconds
        try:
            codes = [one.wait(max(end - time.monotonic(), 1)) for one in self.agents]
        except subprocess.TimeoutExpired:
            codes = [None] * NODES  # type: ignore[list-item]
            for node in range(NODES):
                self.kill(node)
        if any(code != 0 for code in codes):
            said = [(self.runs / f"node{n}.out").read_text()[-3000:] for n in range(NODES)]
            raise RuntimeError(f"two nodes ended with {codes}:\n" + "\n".join(said))


def descendants(process: int) -> Iterator[int]:
    """The processes that a process started, directly or indirectly."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    waiting = [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        waiting.extend(children)
        yield from children


@dataclass(frozen=True)
class Apart:
    """The largest differences between two finished runs."""

    weights: float  # and statistics
    scores: float  # in percentage points
    losses: float  # in the records


def apart(one: Path, other: Path) -> Apart:
    """Compare the last states, scores and records of two runs."""
    states = [(load_newest(folder / "checkpoints") or {})["method"] for folder in (one, other)]
    if states[0].keys() != states[1].keys():
        raise ValueError(f"{one} and {other} are of different networks")
    weights = max(
        float((states[1][name].double() - value.double()).abs().max())
        for name, value in states[0].items()
        if isinstance(value, Tensor)
    )
    scores = [metrics_of(folder) for folder in (one, other)]
    losses = [
        [record["loss"] for record in read_records(folder / "metrics.jsonl") if "loss" in record]
        for folder in (one, other)
    ]
    return Apart(
        weights,
        max(abs(scores[1][name] - value) for name, value in scores[0].items()),
        max(abs(a - b) for a, b in zip(*losses, strict=True)),
    )


def one_process(runs: Path, options: Sequence[str] = EXACT) -> Path:
    """Train in one process; returns the run's folder."""
    subprocess.run([sys.executable, *command(runs, options)], check=True)
    return folder_of(runs)


def two_nodes(runs: Path, options: Sequence[str] = EXACT) -> Path:
    """Train on two nodes; returns the run's folder."""
    Nodes(runs, options).finish()
    return folder_of(runs)


@dataclass(frozen=True)
class Broken:
    """A training of which a node or a rank was killed."""

    folder: Path
    update: int  # of the newest checkpoint at the kill
    processes: int  # that were killed


def one_rank_killed(runs: Path, at: int = 200, options: Sequence[str] = EXACT) -> Broken:
    """Kill one of the ranks of a single node; its agent then restarts all of them."""
    runs.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "3"]
    line += ["--nproc-per-node", str(RANKS), *command(runs, options)]
    with (runs / "node.out").open("ab") as output:
        started = subprocess.Popen(
            line, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT}
        )
    while (saved := _saved(folder_of(runs))) < at and started.poll() is None:
        time.sleep(0.05)
    ranks = [*descendants(started.pid)]
    if ranks:
        os.kill(ranks[-1], signal.SIGKILL)
    if started.wait(900) or not ranks:
        said = (runs / "node.out").read_text()[-3000:]
        raise RuntimeError(f"{len(ranks)} ranks at update {saved}, and then:\n{said}")
    return Broken(folder_of(runs), saved, 1)


def one_node_killed(runs: Path, at: int = 200, options: Sequence[str] = EXACT) -> Broken:
    """Kill the second node after the checkpoint of this update, and start it again."""
    nodes, folder = Nodes(runs, options), folder_of(runs)
    while (saved := _saved(folder)) < at:
        if any(one.poll() is not None for one in nodes.agents):
            nodes.finish()
            raise RuntimeError(f"the training was over before update {at}")
        time.sleep(0.05)
    killed = nodes.kill(1)
    time.sleep(2)
    nodes.start_again(1)
    nodes.finish()
    return Broken(folder, saved, killed)


def _saved(folder: Path) -> int:
    found = (folder / "checkpoints").glob("[0-9]*.pt")
    return max((int(path.name.split(".")[0]) for path in found), default=0)
