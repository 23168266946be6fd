"""Ctrl-C as a question that long work asks itself between steps."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StoppedError(Exception):
    """Work that was interrupted and saved."""


@contextmanager
def catch_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or a termination came; a second Ctrl-C interrupts at once."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
