"""Times of functions that take turns in rounds, and result rows with their medians and minima."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Functions = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall time and processor time of one call; other processes of a busy machine change the processor time less."""

    wall: float
    cpu: float


Times = dict[str, list[Seconds]]


def synchronize() -> None:
    """Wait for all work on the GPU, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Stopwatch:
    """Measure the seconds from construction to ``read``, with all work that these start on a GPU."""

    def __init__(self) -> None:
        synchronize()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        """Return the seconds since construction."""
        synchronize()
        return Seconds(time.perf_counter() - self.wall, time.process_time() - self.cpu)


def run_round(functions: Functions, times: Times) -> None:
    """Call each function once and append its seconds."""
    for name, function in functions.items():
        stopwatch = Stopwatch()
        function()
        times.setdefault(name, []).append(stopwatch.read())


def time_in_rounds(functions: Functions, rounds: int) -> Times:
    """Return the seconds per call of functions that take turns, without a first round to warm up."""
    times: Times = {}
    for _ in range(rounds + 1):
        run_round(functions, times)
    return {name: seconds[1:] for name, seconds in times.items()}


def fastest(functions: Functions, rounds: int) -> str:
    """Return the name of the function with the smallest minimum: processor time on a CPU, wall time with a GPU."""
    times, clock = time_in_rounds(functions, rounds), "wall" if torch.cuda.is_initialized() else "cpu"
    return min(times, key=lambda name: min(getattr(seconds, clock) for seconds in times[name]))


def row(part: str, shape: str, times: Times, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return one result row, in milliseconds per call."""
    return {
        "part": part,
        "shape": shape,
        **{
            f"{statistic}_{clock}_ms": {
                name: round(1e3 * summarize(getattr(seconds, clock) for seconds in calls), 3)
                for name, calls in times.items()
            }
            for clock in ("wall", "cpu")
            for statistic, summarize in (("median", statistics.median), ("min", min))
        },
        "rounds": min(len(seconds) for seconds in times.values()),
        "settings": dict(settings),
    }
