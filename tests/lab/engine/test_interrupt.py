"""Signals are noted once and act at once the second time."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from batchformer.lab.engine.interrupt import Interrupted, stop_requests


def test_a_signal_is_noted_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests() as request:
        assert request.signal_number is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_acts() -> None:
    # Processes that a shell starts in the background begin with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), stop_requests():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_signal_that_would_kill_lets_the_process_clean_up() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted, match="saved before") as stop, stop_requests():
            os.kill(os.getpid(), signal.SIGTERM)
            # Otherwise the next signal would kill the tests instead of failing this one.
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "the third kills"
        assert stop.value.exit_code == 143 and not isinstance(stop.value, Exception)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stop_requests() as request:
            seen.append(request.signal_number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None] and signal.getsignal(signal.SIGINT) is before
