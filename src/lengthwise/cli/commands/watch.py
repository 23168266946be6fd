"""The ``watch`` command, which shows the runs of a folder while they train: a live table, or a line for each change."""

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group
from rich.live import Live
from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import make_tables, out_console, print_json, print_line

REFRESH_S = 1.0
HEADER = ["run", "state", "steps", "loss", "exact match", "steps/s", "results by length"]


def watch(
    folder: Annotated[Path, Argument(metavar="DIR", file_okay=False, help="Folder of runs, comparisons or sweeps.")],
    once: Annotated[bool, Option("--once", help="Print the present state and exit.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Show the runs in a folder while they train; Ctrl-C ends the display and no run.

    Without a terminal, print a line whenever a run changes. --json prints the present state and exits.
    """
    from lengthwise.experiments.run_states import read_run_states

    states = read_run_states(folder)
    if as_json:
        print_json({"runs": [asdict(state) for state in states]})
        return
    if once:
        out_console.print(_draw(states, {}))
        return
    speedometer = TrainingSpeedMeter()
    printed: dict[str, str] = {}
    display = Live(console=out_console, auto_refresh=False) if out_console.is_terminal else nullcontext()
    with suppress(KeyboardInterrupt), display as live:
        while True:
            states = read_run_states(folder)
            speeds = speedometer.update(states, time.monotonic())
            if live is not None:
                live.update(_draw(states, speeds), refresh=True)
            else:
                _print_changes(states, speeds, printed)
            time.sleep(REFRESH_S)


def _draw(states: Sequence[Any], speeds: dict[str, float]) -> Group | str:
    """Return the table of all runs, or a line if there are no runs."""
    if not states:
        return "no runs yet"
    body = [_cells(state, speeds.get(state.name)) for state in states]
    return Group(*make_tables(HEADER, body, out_console.width))


def _print_changes(states: Sequence[Any], speeds: dict[str, float], printed: dict[str, str]) -> None:
    for state in states:
        # The speed changes all the time, so it is no reason for a new line.
        line = "  ".join(_cells(state, None))
        if printed.get(state.name) != line:
            printed[state.name] = line
            print_line("  ".join(_cells(state, speeds.get(state.name))))


def _cells(state: Any, speed: float | None) -> list[str]:
    steps = f"{state.step:,}" + ("" if state.num_steps is None else f"/{state.num_steps:,}")
    numbers = [_format(state.loss, 4), _format(state.exact_match, 3), _format(speed, 1)]
    results = "  ".join(f"{length}:{_format(value, 3)}" for length, value in state.results.items())
    return [state.name, state.state, steps, *numbers, results or "-"]


def _format(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"


class TrainingSpeedMeter:
    """Speed of each run in steps per second, since the first time that it was seen."""

    def __init__(self) -> None:
        self.first_steps: dict[str, tuple[float, int]] = {}

    def update(self, states: Sequence[Any], now: float) -> dict[str, float]:
        """Return the speed of each running run that has made steps; ``now`` is a time in seconds."""
        speeds = {}
        for state in states:
            first_time, first_step = self.first_steps.setdefault(state.name, (now, state.step))
            if state.state == "running" and state.step > first_step:
                speeds[state.name] = (state.step - first_step) / (now - first_time)
        return speeds
