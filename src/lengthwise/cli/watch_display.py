"""Display of the ``watch`` command: a live table in a terminal, and a line for each change elsewhere."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group
from rich.live import Live

from lengthwise.cli.terminal import make_tables, out_console, print_line
from lengthwise.experiments.run_states import RunState, read_run_states

REFRESH_S = 1.0
HEADER = ["run", "state", "steps", "loss", "exact match", "steps/s", "results by length"]


def print_states(states: Sequence[RunState], speeds: dict[str, float]) -> None:
    """Print the table of all runs, or a line if there are no runs."""
    out_console.print(_draw(states, speeds))


def _draw(states: Sequence[RunState], speeds: dict[str, float]) -> Group | str:
    if not states:
        return "no runs yet"
    body = [_cells(state, speeds.get(state.name)) for state in states]
    return Group(*make_tables(HEADER, body, out_console.width))


def _cells(state: RunState, speed: float | None) -> list[str]:
    steps = f"{state.step:,}" + ("" if state.num_steps is None else f"/{state.num_steps:,}")
    numbers = [_format(state.loss, 4), _format(state.exact_match, 3), _format(speed, 1)]
    results = "  ".join(f"{length}:{_format(value, 3)}" for length, value in state.results.items())
    return [state.name, state.state, steps, *numbers, results or "-"]


def _format(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"


class Speedometer:
    """Speed of each run in steps per second, since the first time that it was seen."""

    def __init__(self) -> None:
        self.first_steps: dict[str, tuple[float, int]] = {}

    def update(self, states: Sequence[RunState], now: float) -> dict[str, float]:
        """Return the speed of each running run that has made steps; ``now`` is a time in seconds."""
        speeds = {}
        for state in states:
            first_time, first_step = self.first_steps.setdefault(state.name, (now, state.step))
            if state.state == "running" and state.step > first_step:
                speeds[state.name] = (state.step - first_step) / (now - first_time)
        return speeds


def show_live(folder: Path) -> None:
    """Show the table of the runs in a folder, and update it until an interruption."""
    speedometer = Speedometer()
    with Live(console=out_console, auto_refresh=False) as live:
        while True:
            states = read_run_states(folder)
            live.update(_draw(states, speedometer.update(states, time.monotonic())), refresh=True)
            time.sleep(REFRESH_S)


def print_changes(folder: Path) -> None:
    """Print a line whenever a run in a folder changes, until an interruption."""
    printed: dict[str, str] = {}
    speedometer = Speedometer()
    while True:
        states = read_run_states(folder)
        speeds = speedometer.update(states, time.monotonic())
        for state in states:
            # The speed changes all the time, so it is no reason for a new line.
            line = "  ".join(_cells(state, None))
            if printed.get(state.name) != line:
                printed[state.name] = line
                print_line("  ".join(_cells(state, speeds.get(state.name))))
        time.sleep(REFRESH_S)
