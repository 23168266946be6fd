"""States of the runs of a report that are still training or have no results."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lengthwise.experiments.run_states import RunState
from lengthwise.report.chart import Table

# States of runs that the page shows even if they have results.
WORKING = ("running", "stale", "failed")


def describe_states(states: Sequence[RunState]) -> tuple[list[str], list[Table]]:
    """Return a sentence and a table of unfinished runs and runs without results, or nothing for no states."""
    if not states:
        return [], []
    counts = "; ".join(f"{count:,} {name}" for name, count in Counter(map(_state_name, states)).items())
    body = [[state.name, _state_name(state), _step(state), _number(state.loss)] for state in states]
    table = Table(title="Unfinished runs and runs without results", header=["run", "state", "step", "loss"], body=body)
    return [f"Unfinished runs and runs without results: {counts}."], [table]


def _state_name(state: RunState) -> str:
    return "finished, not evaluated" if state.state == "finished" else state.state


def _step(state: RunState) -> str:
    return _number(state.step) + ("" if state.num_steps is None else f" of {_number(state.num_steps)}")


def _number(value: Any) -> str:
    """Return the text of a value of a file that is not checked."""
    if type(value) is int:
        return f"{value:,}"
    return "-" if value is None else f"{value:.4g}" if type(value) is float else str(value)
