"""Stop when asked, between updates, so that nothing computed is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """The run was asked to stop and has saved its state, or was asked again before it could.

    Not an ``Exception``: nothing that handles errors should mistake it for one.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopRequest:
    """Whether a signal has asked the run to stop."""

    signal_number: int | None = None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one acts at once.

    Where a second one would kill the process, it raises :class:`Interrupted` instead, and a third
    one kills. A process that is killed cannot wait for its GPU, and where several share one through
    NVIDIA's MPS, the work that it leaves there can fault the others. A second signal is easily had:
    one to a group of processes reaches a training directly and through whatever started it.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.signal_number = number
        killing = previous[number] == signal.SIG_DFL
        signal.signal(number, at_once if killing else previous[number])

    def at_once(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Interrupted(number, "Stopped at once, with what was saved before.")

    signals = (signal.SIGINT, signal.SIGTERM)
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number in signals:
            signal.signal(number, previous[number])
