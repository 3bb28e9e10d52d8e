"""Run a command that ``torchrun`` has started on several ranks.

The process group is opened and closed only here. Rank 0 prints; another rank prints only messages
that no rank has printed yet, and why it failed. torch is imported when it is needed, so that a
command without ranks starts fast.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

#: What a rank prints when another one is lost.
LOST = (
    "batchformer: another rank has ended, and this one cannot continue without it. Saved "
    "checkpoints are intact: run the same command again to resume, or start it with torchrun "
    "--max-restarts."
)
#: The key by which rank 0 tells the others that it ends, and how long they wait for it.
ENDED, PATIENCE = "batchformer/ended", timedelta(seconds=10)


def several_ranks() -> bool:
    """Whether ``torchrun`` started this process together with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_follower() -> bool:
    """Whether another process is rank 0."""
    return several_ranks() and os.environ["RANK"] != "0"


def run_as_rank(work: Callable[[], None]) -> NoReturn:
    """Run a command as one rank and end the process with its exit code."""
    code, output = 1, RankOutput()
    try:
        with process_group() as store:
            output.store = store
            with output.by_rank_zero():
                code = _exit_code(work)
            if code:
                output.wait_for_rank_zero()
                _end(code)
    except Exception as error:
        from batchformer.lab.engine.distributed.rank_zero import RankZeroFailed

        if not isinstance(error, RankZeroFailed):
            output.print_once(LOST if _is_lost(error) else traceback.format_exc().rstrip())
        output.wait_for_rank_zero()
        code = 1
    _end(code)


@contextmanager
def process_group() -> Iterator[Any]:
    """Open the process group that the environment describes; close it unless an error came.

    Gives the store that all ranks share. With GPUs each rank uses the one of its local rank, and
    tensors travel by NCCL; else by gloo.
    """
    import torch
    from torch import distributed as dist
    from torch.distributed.rendezvous import rendezvous

    from batchformer.lab.engine.distributed.rank_zero import max_over_ranks

    store, rank, size = next(iter(rendezvous("env://")))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    yield store
    # Not after an error: closing waits for the other ranks, and they may wait for this one.
    max_over_ranks(0)
    dist.destroy_process_group()


def print_once(message: str) -> None:
    """Print a message on stderr, once even if every rank has it."""
    if _output is None:
        print(message, file=sys.stderr)
    else:
        _output.print_once(message)


class RankOutput:
    """What this rank prints: rank 0 everything, others only what no rank has printed.

    Attributes:
        store: shared by all ranks.
        gave_reason: whether this rank has said why it ends.
    """

    store: Any = None
    gave_reason: bool = False

    def print_once(self, message: str) -> None:
        """Print a message on stderr, unless another rank has printed it."""
        self.gave_reason = True
        if self.store is not None:
            digest = hashlib.sha256(message.encode()).hexdigest()
            try:
                if self.store.add(f"said/{digest}", 1) > 1:
                    return
            except Exception:  # rank 0 owned the store; it has ended and given its reason
                if message != LOST:
                    return
        print(message, file=sys.__stderr__, flush=True)

    def wait_for_rank_zero(self) -> None:
        """Before a failed rank ends: wait for the reason of rank 0, unless this rank gave its own.

        When any rank ends, torchrun ends the others. Rank 0 only tells the others that it ends.
        """
        if self.store is None:
            return
        try:
            if not is_follower():
                self.store.set(ENDED, "1")
            elif not self.gave_reason:
                self.store.wait([ENDED], PATIENCE)
        except Exception:  # the store ended with rank 0
            return

    @contextmanager
    def by_rank_zero(self) -> Iterator[None]:
        """Silence all ranks but rank 0, except for warnings and :func:`print_once`."""
        global _output
        _output = self
        if not is_follower():
            yield
            return
        kept = sys.stdout, sys.stderr, warnings.showwarning

        def warn(message: Any, category: Any, filename: str, line: int, *_: Any) -> None:
            before = self.gave_reason
            self.print_once(warnings.formatwarning(message, category, filename, line).rstrip())
            self.gave_reason = before  # a warning is not why a rank ends

        with Path(os.devnull).open("w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            warnings.showwarning = warn  # type: ignore[assignment]
            try:
                yield
            finally:
                sys.stdout, sys.stderr, warnings.showwarning = kept


_output: RankOutput | None = None


def _exit_code(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of gloo may outlive the group, and would abort an interpreter that ends normally.
    os._exit(code)


def _is_lost(error: BaseException) -> bool:
    """Whether a collective failed because another rank is gone."""
    from torch import distributed as dist

    words = str(error).lower()
    signs = ("gloo", "connection closed by peer", "connection reset", "nccl", "broken pipe")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(sign in words for sign in signs)
    )
