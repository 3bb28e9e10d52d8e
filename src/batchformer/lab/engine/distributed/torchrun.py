"""One command as one of several ranks, as ``torchrun`` starts them; nothing here needs torch first.

The process group is opened and closed here and nowhere else. Rank 0 speaks; another rank says only
what nobody has said yet and what made it fail."""

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

#: What a rank says where others were lost.
LOST = (
    "batchformer: another rank has ended, and this one cannot go on without it. What was saved "
    "before is as it was; the same command goes on from there, with torchrun --max-restarts by "
    "itself."
)


#: What rank 0 tells the others when it ends, and how long they wait for it.
ENDED, PATIENCE = "batchformer/ended", timedelta(seconds=10)


def several_ranks() -> bool:
    """Whether this process was started as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_follower() -> bool:
    """Whether it is another than rank 0, which has nothing to show."""
    return several_ranks() and os.environ["RANK"] != "0"


@contextmanager
def process_group() -> Iterator[Any]:
    """Open the process group that the environment describes, and close it where all went well.

    On GPUs each rank has that of its local number, and tensors travel by NCCL; on the CPU by gloo.

    Returns:
        The store that all ranks share, or None where there is one rank.
    """
    if not several_ranks():
        yield None
        return
    import torch
    from torch import distributed as dist
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://")))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    yield store
    # Not after an error: others may be waiting for this rank, and closing would wait for them.
    from batchformer.lab.engine.distributed.rank_zero import max_over_ranks

    max_over_ranks(0)
    dist.destroy_process_group()


def run_as_rank(work: Callable[[], None]) -> NoReturn:
    """Do the work of a command as one rank, and end the process with its exit code."""
    code, voice = 1, Voice()
    try:
        with process_group() as store:
            voice.store = store
            with voice.of_the_first():
                code = _exit_code(work)
            if code:
                voice.leave()
                _end(code)
    except Exception as error:
        from batchformer.lab.engine.distributed.rank_zero import RankZeroFailed

        if not isinstance(error, RankZeroFailed):
            voice.say_once(LOST if _is_lost(error) else traceback.format_exc().rstrip())
        voice.leave()
        code = 1
    _end(code)


def _exit_code(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(code)


def _is_lost(error: BaseException) -> bool:
    """Whether a collective failed because another rank is gone."""
    from torch import distributed as dist

    words = str(error).lower()
    signs = ("gloo", "connection closed by peer", "connection reset", "nccl", "broken pipe")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(sign in words for sign in signs)
    )


class Voice:
    """Who says what: rank 0 all of it, another what nobody has said.

    Attributes:
        store: that ranks share.
        spoke: whether this rank had something to say.
    """

    store: Any = None
    spoke: bool = False

    def say_once(self, message: str) -> None:
        """Say it, on whichever rank comes to it first."""
        self.spoke = True
        if self.store is not None:
            digest = hashlib.sha256(message.encode()).hexdigest()
            try:
                if self.store.add(f"said/{digest}", 1) > 1:
                    return
            except Exception:  # the store was rank 0's, which has ended, and has said why
                if message != LOST:
                    return
        print(message, file=sys.__stderr__, flush=True)

    def leave(self) -> None:
        """Before a failed rank ends: one that has said nothing lets rank 0 speak first.

        Whoever ends first, torchrun ends the others.
        """
        if self.store is None:
            return
        try:
            if not is_follower():
                self.store.set(ENDED, "1")
            elif not self.spoke:
                self.store.wait([ENDED], PATIENCE)
        except Exception:  # rank 0 has taken its store with it
            return

    @contextmanager
    def of_the_first(self) -> Iterator[None]:
        """Within it, ranks but the first print nothing; warnings and :func:`say` are said once."""
        global _voice
        _voice = self
        if not is_follower():
            yield
            return
        kept = sys.stdout, sys.stderr, warnings.showwarning

        def warn(message: Any, category: Any, filename: str, line: int, *_: Any) -> None:
            spoke = self.spoke
            self.say_once(warnings.formatwarning(message, category, filename, line).rstrip())
            self.spoke = spoke  # it is not why this rank ends, if it does

        with Path(os.devnull).open("w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            warnings.showwarning = warn  # type: ignore[assignment]
            try:
                yield
            finally:
                sys.stdout, sys.stderr, warnings.showwarning = kept


_voice: Voice | None = None


def say(message: str) -> None:
    """Why a command ends: on stderr, and by one of several ranks that say the same."""
    if _voice is None:
        print(message, file=sys.stderr)
    else:
        _voice.say_once(message)
