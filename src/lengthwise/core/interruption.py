"""Handling of Ctrl-C in long computations, which check for an interruption between steps."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StoppedError(Exception):
    """Exception for a computation that was interrupted after it saved its state."""


class FailedRunsError(StoppedError):
    """Exception for runs that failed while the other runs finished; all results are saved."""


@contextmanager
def catch_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or SIGTERM; a second Ctrl-C raises ``KeyboardInterrupt``."""
    received_signals: list[int] = []

    def handle_signal(signal_number: int, frame: FrameType | None) -> None:
        received_signals.append(signal_number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous_handlers = {number: signal.signal(number, handle_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received_signals)
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
