"""Stop on SIGINT and SIGTERM between updates, so that no work is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """The run stopped on a signal: it saved its state, or a second signal came before it could.

    Not an ``Exception``, so that no error handler catches it by mistake.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopRequest:
    """Whether a signal has asked the run to stop."""

    signal_number: int | None = None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note the first SIGINT or SIGTERM; a second one acts at once.

    If the default action of the second signal would kill the process, it raises
    :class:`Interrupted` instead, and only a third one kills. A killed process cannot wait for its
    GPU, and where several processes share a GPU through NVIDIA's MPS, unfinished work can fault the
    others. Second signals are common: one sent to a process group reaches a training directly and
    again through its parent.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.signal_number = number
        kills = previous[number] == signal.SIG_DFL
        signal.signal(number, at_once if kills else previous[number])

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
